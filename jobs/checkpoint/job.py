"""The options of an audit of somebody else's model, and what the record keeps of them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from heldin.attacks.config import AttackConfig
from heldin.audit.decision import AuditConfig, DecisionConfig
from heldin.base.errors import InputError
from heldin.bounds.design import Assignment
from heldin.bounds.verdict import Claim, stated_claim
from heldin.corpus.sources.rows import Columns
from heldin.jobs.checkpoint.audit_config import AT_ENDPOINT
from heldin.record.document import Record
from heldin.record.release import Release
from heldin.stages.measures.keys import MeasureKeys
from heldin.stages.measures.measure import MeasureOptions

if TYPE_CHECKING:
    from heldin.jobs.checkpoint.endpoint import Remote


@dataclass(frozen=True)
class CheckpointAudit:
    """An audit: a model folder (or a LoRA adapter's), its reference, and the texts of both groups.

    Attributes:
        model: folder or hub name; with ``remote`` its name at the endpoint.
        reference: the leading reference model; ``endpoint:NAME`` is one at the same endpoint.
        held_in: file of texts of held-in users.
        held_out: file of texts of held-out users.
        columns: which columns of the files hold what.
        others: further reference models.
        skip_bad_lines: whether unusable rows are skipped and counted; else the first one is an error.
        assignment: how users came to be held in or out, as declared.
        plan: the plan.json among the claims, of which the audit's folder keeps a copy.
        training: file of the model's training data, with the same columns; None: overlaps are not checked.
        texts: whether the scored texts were trained on, as declared; None: not declared.
        max_texts_per_user: maximum number of scored texts per user, the first ones; None: all.
        context: most tokens of a pass of the models that are loaded here; None: as many as each states.
        measures: options of each measurement that is asked for, by its key.
        audit: how evidence is summed up.
        release: to whom the model will be given; None: not stated.
        seed: seed of bootstrap, redraws and halves.
        remote: how models behind an endpoint are reached; None: all models are loaded here.
    """

    model: str
    reference: str
    held_in: Path
    held_out: Path
    columns: Columns
    others: tuple[str, ...] = ()
    name: str = "audit"
    skip_bad_lines: bool = False
    assignment: Assignment = Assignment.UNKNOWN
    claims: tuple[Claim, ...] = ()
    plan: Path | None = None
    training: Path | None = None
    texts: Literal["fresh", "training"] | None = None
    max_texts_per_user: int | None = None
    context: int | None = None
    attack: AttackConfig = field(default_factory=AttackConfig)
    measures: Mapping[str, MeasureOptions] = field(default_factory=dict)
    audit: AuditConfig = field(default_factory=AuditConfig)
    decision: DecisionConfig = field(default_factory=DecisionConfig)
    release: Release | None = None
    seed: int = 0
    remote: "Remote | None" = None

    def models(self) -> tuple[str, ...]:
        """Target, leading reference and the others."""
        # With an endpoint the target is always there; references are only where their name says so.
        return (f"{AT_ENDPOINT if self.remote else ''}{self.model}", self.reference, *self.others)

    def recorded(self) -> dict[str, Any]:
        """Return what the record stores of the audit."""
        return {
            "model": self.model,
            "reference": self.reference,
            "others": list(self.others),
            "held_in": str(self.held_in),
            "held_out": str(self.held_out),
            "training": None if self.training is None else str(self.training),
            "texts": self.texts,
            "max_texts_per_user": self.max_texts_per_user,
            "assignment": self.assignment.value,
            "columns": asdict(self.columns),
            "skip_bad_lines": self.skip_bad_lines,
            "seed": self.seed,
            # A plan's curve is kept as the file plan.json, from which verification reads it again.
            "stated_claims": [[claim.epsilon, claim.delta] for claim in self.claims if not claim.is_curve],
            "plan": None if self.plan is None else str(self.plan),
            "attack": self.attack.model_dump(mode="json"),
            "audit": self.audit.model_dump(mode="json"),
            "decision": self.decision.model_dump(mode="json"),
            **dict.fromkeys(MeasureKeys.model_fields),
            **{key: options.model_dump(mode="json") for key, options in self.measures.items()},
            "context": self.context,
            "release": None if self.release is None else self.release.model_dump(mode="json"),
            "endpoint": None if self.remote is None else self.remote.config(),
        }


def audit_job(folder: Path, record: Record) -> CheckpointAudit:
    """Return the audit that a record describes. Raises InputError if the record does not say how it was done."""
    kept = record.config
    try:
        claims: list[Claim] = [stated_claim(epsilon, delta) for epsilon, delta in kept["stated_claims"]]
        if kept["plan"] is not None:
            from heldin.bounds.plan_claims import plan_claim

            # The folder's copy, not the path that was given.
            claims.append(plan_claim(folder / "plan.json"))
        return CheckpointAudit(
            model=kept["model"],
            reference=kept["reference"],
            others=tuple(kept["others"]),
            held_in=Path(kept["held_in"]),
            held_out=Path(kept["held_out"]),
            columns=Columns(**kept["columns"]),
            name=record.name,
            skip_bad_lines=kept["skip_bad_lines"],
            assignment=Assignment(kept["assignment"]),
            claims=tuple(claims),
            plan=None if kept["plan"] is None else Path(kept["plan"]),
            training=None if kept["training"] is None else Path(kept["training"]),
            texts=kept["texts"],
            max_texts_per_user=kept["max_texts_per_user"],
            context=kept["context"],
            attack=AttackConfig.model_validate(kept["attack"]),
            measures=MeasureKeys(**{key: kept[key] for key in MeasureKeys.model_fields}).measures(),
            audit=AuditConfig.model_validate(kept["audit"]),
            decision=DecisionConfig.model_validate(kept["decision"]),
            release=None if kept["release"] is None else Release.model_validate(kept["release"]),
            seed=kept["seed"],
            remote=None if kept["endpoint"] is None else _remote_of(kept["endpoint"]),
        )
    # A record that was edited.
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"'{folder / 'record.json'}' does not say how its audit was done ({str(error).splitlines()[0]}): it cannot"
            " be verified"
        ) from error


def _remote_of(kept: dict[str, Any]) -> "Remote":
    from heldin.jobs.checkpoint.endpoint import remote_of

    return remote_of(kept)
