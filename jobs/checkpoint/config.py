"""What ``heldin audit`` is asked, as a file: the same checks, defaults and words as a run's config has."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from heldin.attacks.config import AttackConfig, one_of
from heldin.attacks.protocol import AGGREGATIONS
from heldin.attacks.statistics import ATTACKS
from heldin.audit.config import AuditConfig
from heldin.audit.decision import DecisionConfig
from heldin.base.config_errors import checked
from heldin.base.section import ExpandedName, ExpandedPath, Section
from heldin.bounds.claims import parse_claim, plan_claim
from heldin.bounds.verdict import Assignment
from heldin.corpus.sources.rows import Columns

if TYPE_CHECKING:  # the models behind these load torch, and a reference of keys needs none
    from heldin.jobs.checkpoint.endpoint import Remote
    from heldin.jobs.checkpoint.job import CheckpointAudit


class EndpointConfig(Section):
    """A model behind an OpenAI-compatible endpoint that returns log-probabilities of a prompt."""

    url: ExpandedName
    """The address below which /completions lies, such as https://host/v1."""
    tokenizer: ExpandedName | None = None
    """Of the models there, by folder or hub name; null: texts are sent as they are."""
    context: int | None = Field(None, ge=3)
    """Context length in tokens, if the server does not report it."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key; null: no key is sent."""
    requests_per_minute: float | None = Field(None, gt=0)
    """At most; null: as fast as answers come."""
    concurrency: int = Field(4, ge=1)
    """Requests in flight at once."""
    timeout: float = Field(120.0, gt=0)
    """Seconds of silence after which a request is tried again."""
    max_tries: int = Field(6, ge=1)
    """Tries of one request, the first included."""
    price_per_million: float | None = Field(None, ge=0)
    """Price of a million tokens, for the cost estimate, in any currency."""
    max_tokens_sent: int | None = Field(None, ge=0)
    """Refuse an audit that would send more."""

    def remote(self) -> "Remote":
        """How the target is reached. Raises InputError for an address that is none."""
        from heldin.jobs.checkpoint.endpoint import Remote
        from heldin.models.endpoint_client import Endpoint

        pace = self.model_dump(include={"requests_per_minute", "concurrency", "timeout", "max_tries"})
        return Remote(
            Endpoint(self.url, self.api_key_env, **pace),
            tokenizer=self.tokenizer,
            context=self.context,
            price=self.price_per_million,
            max_tokens_sent=self.max_tokens_sent,
        )


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class CheckpointAttacks(Section):
    """Which attacks, and what is scored of a text."""

    names: tuple[Annotated[str, one_of(ATTACKS)], ...] = tuple(ATTACKS)
    """Attacks to run."""
    primary: Annotated[str, one_of(ATTACKS)] = "likelihood-ratio"
    """The attack that leads; one of ``names``."""
    aggregations: tuple[Annotated[str, one_of(AGGREGATIONS)], ...] = ("mean", "min", "max")
    """Ways to make one score of a user's texts; the first leads."""
    max_characters: int = Field(4000, ge=1)
    """Characters of a text that are scored, from its beginning."""

    @model_validator(mode="after")
    def _known(self) -> "CheckpointAttacks":
        try:
            self.config(None)
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
        return self

    def config(self, reference: str | None) -> AttackConfig:
        """As a run has it, with this leading reference."""
        return AttackConfig(**self.model_dump(), reference=reference)


class CheckpointConfig(Section):
    """One audit of a model that somebody else trained."""

    name: str = Field("audit", min_length=1)
    """Name of the audit, for the report. Its folder is runs/NAME unless --out names one."""
    model: ExpandedName
    """Folder or hub name, also of a LoRA adapter; with ``endpoint`` its name there."""
    reference: Annotated[
        tuple[ExpandedName, ...],
        BeforeValidator(_several, json_schema_input_type=str | tuple[str, ...]),
        Field(min_length=1),
    ]
    """Models that were not trained on these users, such as the base model; the first leads, the others stand beside
    it. A name such as endpoint:NAME is one at the same endpoint."""
    held_in: ExpandedPath
    """File of texts of users that were trained on."""
    held_out: ExpandedPath
    """File of texts of users that were not."""
    columns: Columns = Columns()
    """Which columns of the files hold what."""
    skip_bad_lines: bool = False
    """Whether rows that cannot be used are counted and skipped; else the first of them is an error."""
    max_texts_per_user: int | None = Field(None, ge=1)
    """Texts scored of one user, the first of them; null: all."""
    assignment: Assignment = Assignment.UNKNOWN
    """How sides came about: by an independent fair coin for each user; fixed, which is anything else that is known, an
    exact half and one of each pair among them; or unknown."""
    training: ExpandedPath | None = None
    """What the model was trained on, by the same columns, to be looked at for texts of both sides; null: nobody
    looks."""
    texts: Literal["fresh", "training"] | None = None
    """What the texts are to training, as somebody declares it who does not look; null: nobody says."""
    claims: tuple[str, ...] = ()
    """What is promised and tested, such as epsilon=8,delta=1e-6."""
    plan: ExpandedPath | None = None
    """A plan.json whose curve is tested too."""
    attack: CheckpointAttacks = CheckpointAttacks()
    """Which attacks."""
    audit: AuditConfig = AuditConfig()
    """How evidence is summed up."""
    decision: DecisionConfig = DecisionConfig()
    """By what the answer is decided."""
    seed: int = Field(0, ge=0)
    """Of bootstrap and redraws; public."""
    endpoint: EndpointConfig | None = None
    """Where the model is served, if it is not loaded here."""

    def job(self) -> "CheckpointAudit":
        """What to do. Raises InputError for a claim that is none, and for a plan without a guarantee for users."""
        from heldin.jobs.checkpoint.job import CheckpointAudit

        claims = [parse_claim(text) for text in self.claims] + ([plan_claim(self.plan)] if self.plan else [])
        return CheckpointAudit(
            model=self.model,
            reference=self.reference[0],
            others=self.reference[1:],
            held_in=self.held_in,
            held_out=self.held_out,
            columns=self.columns,
            name=self.name,
            skip_bad_lines=self.skip_bad_lines,
            assignment=self.assignment,
            claims=tuple(claims),
            plan=self.plan,
            training=self.training,
            texts=self.texts,
            max_texts_per_user=self.max_texts_per_user,
            attack=self.attack.config(self.reference[0]),
            audit=self.audit,
            decision=self.decision,
            seed=self.seed,
            remote=None if self.endpoint is None else self.endpoint.remote(),
        )

    def files(self) -> list[Path]:
        """Every file that the config names."""
        return [path for path in (self.held_in, self.held_out, self.training, self.plan) if path is not None]


def parse_checkpoint(
    content: Mapping[str, Any], where: str, options: Mapping[str, str] | None = None
) -> CheckpointConfig:
    """Check an audit's content; arguments and errors of ``base.config_errors.checked``."""
    return checked(CheckpointConfig, content, where, options)
