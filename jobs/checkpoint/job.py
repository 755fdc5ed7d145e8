"""The settings of an audit of somebody else's model, the users in the two files, and the models that score texts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from heldin.attacks.access import Access
from heldin.attacks.config import AttackConfig
from heldin.attacks.scoring import AttackTexts
from heldin.audit.decision import AuditConfig, DecisionConfig
from heldin.base.coins import keyed_order, seed_key
from heldin.base.errors import InputError
from heldin.base.files import cache_directory
from heldin.base.progress import Reporter
from heldin.base.wording import counted, in_bytes
from heldin.bounds.design import Assignment
from heldin.bounds.verdict import Claim, parse_claim, stated_claim
from heldin.corpus.build import build_store
from heldin.corpus.chat.opening import RowReading, StatedRows, kept_reading, reading_again, reading_of
from heldin.corpus.chat.template import ChatTemplate
from heldin.corpus.document import Document
from heldin.corpus.sources.bad_rows import BadRows, OnBadRows
from heldin.corpus.sources.open import open_source
from heldin.corpus.sources.rows import Columns, Source
from heldin.corpus.sources.text_files import TextFormat
from heldin.corpus.store import CorpusStore, documents_in, documents_of
from heldin.jobs.checkpoint.audit_config import AT_ENDPOINT, CheckpointConfig, EndpointConfig, text_sources
from heldin.jobs.checkpoint.opened import OpenedModels
from heldin.models.devices import default_device, scoring_memory
from heldin.models.loading import load_tokenizer_of, stored_weights
from heldin.models.logprobs import bytes_of_a_pass
from heldin.models.model_config import PrecisionReason, ScoringPrecision
from heldin.models.score_cache import ScoredModel
from heldin.record.document import Record
from heldin.record.overlaps import Parts, Seen, seen_in_training
from heldin.record.release import Release
from heldin.stages.measures.keys import MeasureKeys
from heldin.stages.measures.measure import MeasureOptions
from heldin.words.rows import SkippedText

if TYPE_CHECKING:
    from heldin.jobs.checkpoint.endpoint import Remote


@dataclass(frozen=True)
class CheckpointAudit:
    """An audit's settings: the model (a folder or a LoRA adapter), its reference, and the texts of both groups.

    Attributes:
        model: folder or hub name of the model; with ``remote``, the model's name at the endpoint.
        reference: the primary reference model; ``endpoint:NAME`` is a model at the same endpoint.
        held_in: file of members' texts.
        held_out: file of non-members' texts.
        columns: role of each column in the files.
        others: further reference models.
        form: encoding and layout of the files.
        bad_rows: rule for the unusable rows that heldin skips and counts.
        assignment: how users became members or non-members, as declared.
        plan: path of the plan.json among the claims; the audit's folder has a copy.
        training: file of the model's training data, with the same columns; None: heldin does not check overlaps.
        texts: the user's statement about whether training used the scored texts; None: no statement.
        asked: the user's options for rows that are turns.
        template: file of the chat template; None: the template of the target's tokenizer.
        template_options: further inputs of the template.
        reading: rule that turns rows into documents; None until ``with_reading`` sets it.
        max_users: maximum number of users, drawn by the seed from both groups together; None: all.
        max_texts_per_user: maximum number of scored texts per user. heldin takes the first texts. None: all.
        context: maximum number of tokens per pass of models on this machine; None: each model's own limit.
        adapter_base: base of every adapter among the models, in place of the base in the adapter's config.
        choice: rule for the precision. "asked": the precision in ``attack``. "auto" and None: as in the config.
        precision_reason: reason for the precision in ``attack``; "asked" until heldin chooses the precision.
        left_out: attacks that are impossible at the endpoint.
        measures: options of each measure in the config, by its key.
        audit: settings for intervals, bounds and rates.
        release: the planned release of the model; None: not stated.
        seed: seed of the bootstrap, the redraws and the split halves.
        remote: connection to the models behind an endpoint; None: all models are loaded on this machine.
        names_access: whether the user set the attackers' level of access; if not, heldin uses the best level that the
            endpoint offers.
    """

    model: str
    reference: str
    held_in: Path
    held_out: Path
    columns: Columns
    others: tuple[str, ...] = ()
    name: str = "audit"
    form: TextFormat = field(default_factory=TextFormat)
    asked: StatedRows = StatedRows()  # noqa: RUF009
    template: Path | None = None
    template_options: Mapping[str, Any] = field(default_factory=dict)
    reading: RowReading | None = None
    bad_rows: OnBadRows = OnBadRows.SKIP_EMPTY
    assignment: Assignment = Assignment.UNKNOWN
    claims: tuple[Claim, ...] = ()
    plan: Path | None = None
    training: Path | None = None
    texts: Literal["fresh", "training"] | None = None
    max_users: int | None = None
    max_texts_per_user: int | None = None
    context: int | None = None
    adapter_base: str | None = None
    choice: Literal["asked", "auto"] | None = "asked"
    precision_reason: PrecisionReason = "asked"
    left_out: tuple[str, ...] = ()
    attack: AttackConfig = field(default_factory=AttackConfig)
    measures: Mapping[str, MeasureOptions] = field(default_factory=dict)
    audit: AuditConfig = field(default_factory=AuditConfig)
    decision: DecisionConfig = field(default_factory=DecisionConfig)
    release: Release | None = None
    seed: int = 0
    remote: "Remote | None" = None
    names_access: bool = True

    def models(self) -> tuple[str, ...]:
        """Target, primary reference and the other references."""
        # With an endpoint the target is always there; references are only where their name says so.
        return (f"{AT_ENDPOINT if self.remote else ''}{self.model}", self.reference, *self.others)

    def sources(self) -> dict[str, Source]:
        """Return the sources of the files; see ``text_sources``."""
        columns = self.columns if self.reading is None else self.reading.columns
        return text_sources(self.held_in, self.held_out, self.training, columns, self.form)

    def recorded(self) -> dict[str, Any]:
        """Return the settings of the audit that the record stores."""
        return {
            "model": self.model,
            "reference": self.reference,
            "others": list(self.others),
            "held_in": str(self.held_in),
            "held_out": str(self.held_out),
            "training": None if self.training is None else str(self.training),
            "texts": self.texts,
            "max_users": self.max_users,
            "max_texts_per_user": self.max_texts_per_user,
            "assignment": self.assignment.value,
            "columns": asdict(self.columns),
            "format": asdict(self.form),
            "rows": None if self.reading is None else kept_reading(self.reading),
            "bad_rows": self.bad_rows.value,
            "seed": self.seed,
            # A plan's curve is kept as the file plan.json, from which verification reads it again.
            "stated_claims": [[claim.epsilon, claim.delta] for claim in self.claims if not claim.is_curve],
            "plan": None if self.plan is None else str(self.plan),
            "attack": self.attack.model_dump(mode="json"),
            "audit": self.audit.model_dump(mode="json"),
            "decision": self.decision.model_dump(mode="json"),
            "measures": {name: options.model_dump(mode="json") for name, options in self.measures.items()},
            "context": self.context,
            "adapter_base": self.adapter_base,
            "precision_reason": self.precision_reason,
            "left_out": list(self.left_out),
            "release": None if self.release is None else self.release.model_dump(mode="json"),
            "endpoint": None if self.remote is None else self.remote.config(),
        }


def with_reading(job: CheckpointAudit) -> CheckpointAudit:
    """Add the rule that turns the rows of the files into documents.

    Raises InputError for turns that the rows lack, or for messages if there is no template.
    """
    first = open_source(job.held_in, job.columns, job.form).first_row()
    return replace(job, reading=reading_of(first, job.columns, job.asked, lambda: _template_of(job)))


def say_other_templates(job: CheckpointAudit, models: Sequence[ScoredModel], say: Callable[[str], object]) -> None:
    """Report each model whose chat template differs from the template that writes the texts.

    Args:
        job: audit with its ``reading``.
        models: the scored models.
        say: receives one line per model.
    """
    used = None if job.reading is None else job.reading.template_source
    if used is None:
        return
    for model in models:
        own = None if model.tokenizer is None else model.tokenizer.chat_template
        if own is not None and own != used:
            say(
                f"texts: the chat template of '{model.name}' differs from the template that writes the texts. A"
                " model that was trained with its own template never saw these texts: give the right template with"
                " --template"
            )


def _template_of(job: CheckpointAudit) -> ChatTemplate:
    name = job.model if job.remote is None else job.remote.tokenizer
    if name is None and not job.reference.startswith(AT_ENDPOINT):
        # A server has a template of its own; this one places the turns in the text, and writes them for the reference.
        name = job.reference
    if name is None:
        raise InputError("chats need the template of the model's tokenizer: give --tokenizer")
    tokenizer = load_tokenizer_of(name, job.adapter_base)
    return ChatTemplate.of(tokenizer, name, file=job.template, options=job.template_options)


def with_level(job: CheckpointAudit, reporter: Reporter) -> CheckpointAudit:
    """Choose the best level of access that the endpoint offers, unless the user set a level.

    Raises InputError if the endpoint offers no level.
    """
    if job.remote is None or job.names_access:
        return job
    return replace(job, attack=_by_text().best_level(job.remote, job.model, job.attack, reporter), names_access=True)


def with_precision(job: CheckpointAudit, say: Callable[[str], object]) -> CheckpointAudit:
    """Choose the precision of all models on this machine, unless the user set a precision.

    Raises InputError for weights that cannot be loaded on this machine.
    """
    here = [name for name in job.models() if not name.startswith(AT_ENDPOINT)]
    if job.choice == "asked" or not here:
        return job
    # The target's, and where that is behind an endpoint the leading reference's.
    stored = [stored_weights(name, job.adapter_base) for name in here]
    own = stored[0][1].own
    if job.choice == "auto":
        say(f"precision: {own}, the stored precision of '{here[0]}' (--dtype auto)")
        return _in_precision(job, own, "own")
    # Target and leading reference are in memory together, once if they have one base, and further ones in turns.
    sizes = {base: weights.bytes_in("fp32") for base, weights in stored[:2]}
    further = max((weights.bytes_in("fp32") for _, weights in stored[2:]), default=0)
    needed = sum(sizes.values()) + further + bytes_of_a_pass(default_device().type)
    there = scoring_memory()
    if needed <= there or own == "fp32":
        return _in_precision(job, "fp32", "default")
    say(
        f"precision: {own}, the stored precision of '{here[0]}', because fp32 needs {in_bytes(needed)} but only"
        f" {in_bytes(there)} are free (--dtype fp32 tries fp32 anyway)"
    )
    return _in_precision(job, own, "memory")


def _in_precision(job: CheckpointAudit, precision: ScoringPrecision, reason: PrecisionReason) -> CheckpointAudit:
    attack = job.attack.model_copy(update={"precision": precision})
    return replace(job, attack=attack, choice="asked", precision_reason=reason)


def job_of(config: CheckpointConfig) -> CheckpointAudit:
    """Return the audit to run. Raises InputError for an invalid claim, or a plan without a guarantee for users."""
    # The plan's curve last: the first claim's delta is that of the bounds.
    claims: list[Claim] = [parse_claim(text) for text in config.claims]
    if config.plan is not None:
        claims.append(_claim_of(config.plan))
    return CheckpointAudit(
        model=config.model,
        reference=config.reference[0],
        others=config.reference[1:],
        held_in=config.held_in,
        held_out=config.held_out,
        columns=config.columns,
        name=config.name,
        form=config.format,
        asked=StatedRows(config.rows.format, config.attack.turns, config.attack.turns, config.attack.turns),
        template=config.rows.template,
        template_options=config.rows.template_options or {},
        bad_rows=config.bad_rows,
        assignment=config.assignment,
        claims=tuple(claims),
        plan=config.plan,
        training=config.training,
        texts=config.texts,
        max_users=config.max_users,
        max_texts_per_user=config.max_texts_per_user,
        context=config.context,
        adapter_base=config.adapter_base,
        choice=config.attack.precision if config.attack.precision in (None, "auto") else "asked",
        attack=config.attack.config(config.reference[0]),
        measures=config.measures,
        audit=config.audit,
        decision=config.decision,
        release=config.release,
        seed=config.seed,
        remote=None if config.endpoint is None else _remote(config.endpoint),
        names_access=config.names_access,
    )


def _claim_of(plan: Path) -> Claim:
    # The accountant, for this claim alone.
    from heldin.bounds.plan_claims import plan_claim

    return plan_claim(plan)


def _remote(served: EndpointConfig | dict[str, Any]) -> "Remote":
    # Endpoints are no part of an audit of two files.
    from heldin.jobs.checkpoint.endpoint import remote_in, remote_of

    return remote_in(served) if isinstance(served, EndpointConfig) else remote_of(served)


def _by_text() -> ModuleType:
    # As above: of endpoints that generate text.
    from heldin.jobs.checkpoint import text_endpoint

    return text_endpoint


def audit_job(folder: Path, record: Record) -> CheckpointAudit:
    """Return the audit that a record describes. Raises InputError if the record lacks its options."""
    kept = record.config
    try:
        columns = Columns(**kept["columns"])
        claims: list[Claim] = [stated_claim(epsilon, delta) for epsilon, delta in kept["stated_claims"]]
        if kept["plan"] is not None:
            # The folder's copy, not the path that was given.
            claims.append(_claim_of(folder / "plan.json"))
        return CheckpointAudit(
            model=kept["model"],
            reference=kept["reference"],
            others=tuple(kept["others"]),
            held_in=Path(kept["held_in"]),
            held_out=Path(kept["held_out"]),
            columns=columns,
            reading=reading_again(kept["rows"], columns),
            name=record.name,
            form=TextFormat(**kept["format"]),
            bad_rows=OnBadRows(kept["bad_rows"]),
            assignment=Assignment(kept["assignment"]),
            claims=tuple(claims),
            plan=None if kept["plan"] is None else Path(kept["plan"]),
            training=None if kept["training"] is None else Path(kept["training"]),
            texts=kept["texts"],
            max_users=kept["max_users"],
            max_texts_per_user=kept["max_texts_per_user"],
            context=kept["context"],
            adapter_base=kept["adapter_base"],
            precision_reason=kept["precision_reason"],
            left_out=tuple(kept["left_out"]),
            attack=AttackConfig.model_validate(kept["attack"]),
            measures=MeasureKeys.model_validate({"measures": kept["measures"]}).measures,
            audit=AuditConfig.model_validate(kept["audit"]),
            decision=DecisionConfig.model_validate(kept["decision"]),
            release=None if kept["release"] is None else Release.model_validate(kept["release"]),
            seed=kept["seed"],
            remote=None if kept["endpoint"] is None else _remote(kept["endpoint"]),
        )
    # A record that was edited.
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"'{folder / 'record.json'}' does not state how the audit was done ({str(error).splitlines()[0]}), so"
            " heldin cannot verify the audit: restore this file from a backup"
        ) from error


_Looked = dict[bool, Seen]


@dataclass(frozen=True)
class Groups:
    """The texts of both groups.

    Attributes:
        stores: store of each file, under "held-in" and "held-out".
        member: whether each user is a member. The order is by name, so it reveals nothing about membership.
        texts: scored documents of each user, in the order of ``member``.
        seen: matches of members (True) and non-members (False) with the training file, by the counted part of whole
            texts; None without a training file.
        seen_turns: matches by turn, because training may also read uncounted turns; equal to ``seen`` for plain texts.
    """

    stores: Mapping[str, CorpusStore]
    member: Mapping[str, bool]
    texts: Mapping[str, Sequence[Document]]
    seen: Mapping[bool, Seen] | None
    seen_turns: Mapping[bool, Seen] | None

    def of_side(self, held_in: bool, part: Callable[[Document], Parts]) -> dict[str, list[Parts]]:
        """Return the parts of each user's scored texts in one group; ``part`` is ``whole_text`` or
        ``counted_turns``."""
        return {
            user: list(map(part, documents)) for user, documents in self.texts.items() if self.member[user] is held_in
        }

    def number(self, held_in: bool) -> int:
        """Return the number of scored texts in one group."""
        return sum(len(documents) for user, documents in self.texts.items() if self.member[user] is held_in)


def whole_text(document: Document) -> Parts:
    """Return a tuple with the counted part of a text."""
    return [document.counted]


def counted_turns(document: Document) -> Parts:
    """Return the words of each counted turn, or the counted part of a text without turns."""
    return whole_text(document) if document.layout is None else [words for words, counts in document.said() if counts]


def read_groups(job: CheckpointAudit, say: Callable[[str], object] = lambda _: None) -> Groups:
    """Read both files, and the training file if there is one."""
    for source in job.sources().values():
        for how in source.look():
            say(str(how))
    # Before the stores are built: an empty training file would make every held-in user "absent" after all the work.
    if job.training is not None and next(training_records(job), None) is None:
        raise InputError(
            f"no record is usable in the --training file '{job.training}': name the file that the model was"
            " trained on, or leave --training out"
        )
    stores = {
        side: build_store(source, cache_directory(), on_bad=job.bad_rows, say=say)
        for side, source in job.sources().items()
        if side != "training"
    }
    for side, store in stores.items():
        for line in store.report.skipped.lines(f"{side} file", len(store)):
            say(line)
    if all(store.counts.max() == 1 for store in stores.values()):
        say(str(SkippedText.ONE_EACH()))
    _require_disjoint(job, stores["held-in"], stores["held-out"])
    # No user is in both: checked above.
    side_of = {user: side for side, store in stores.items() for user in store.users}
    drawn = _drawn(job, list(side_of))
    side_of = {user: side_of[user] for user in drawn}
    # Sorted by name over both sides, so that no order of users, texts or scores tells the sides.
    texts = {
        user: documents_of(stores[side], list(stores[side].rows(user))[: job.max_texts_per_user])
        for user, side in sorted(side_of.items())
    }
    groups = Groups(stores, {user: side_of[user] == "held-in" for user in texts}, texts, None, None)
    if job.training is None:
        return groups

    def looked_for(part: Callable[[Document], Parts], training: Callable[[], Iterator[tuple[str, str]]]) -> _Looked:
        # The file is read once for each side: it may be larger than memory.
        return {side: seen_in_training(groups.of_side(side, part), training()) for side in (True, False)}

    seen = looked_for(whole_text, lambda: training_records(job))
    has_turns = any(store.has_turns for store in stores.values())
    turns = looked_for(counted_turns, lambda: _training_turns(job)) if has_turns else seen
    return replace(groups, seen=seen, seen_turns=turns)


def _drawn(job: CheckpointAudit, users: Sequence[str]) -> Sequence[str]:
    """Return at most ``max_users`` users, drawn by the public seed from both groups together.

    The number per group is not fixed, so independent coins still decide the membership of the drawn users.
    """
    if job.max_users is None or len(users) <= job.max_users:
        return users
    return keyed_order(seed_key(job.seed), "audited users", list(users))[: job.max_users]


def training_records(job: CheckpointAudit) -> Iterator[tuple[str, str]]:
    """Yield the user and the counted text of each record in the training file."""
    for batch in job.sources()["training"].batches(BadRows(job.bad_rows)):
        counted = (document.counted for document in documents_in(batch))
        yield from zip(batch.column("user").to_pylist(), counted, strict=True)


def _training_turns(job: CheckpointAudit) -> Iterator[tuple[str, str]]:
    """Yield the user and the words of each turn that training reads."""
    for batch in job.sources()["training"].batches(BadRows(job.bad_rows)):
        for user, document in zip(batch.column("user").to_pylist(), documents_in(batch), strict=True):
            yield from ((user, words) for words, _ in document.said())


def _require_disjoint(job: CheckpointAudit, held_in: CorpusStore, held_out: CorpusStore) -> None:
    for side, store in (("held-in", held_in), ("held-out", held_out)):
        if len(store.users) < 2:
            raise InputError(
                f"the {side} file has only {counted(len(store.users), 'user')}: give at least 2 users (100 for a"
                " useful result)"
            )
    shared = {"user": set(held_in.users) & set(held_out.users)}
    # Ids that heldin made are made from user and text, and differ between users.
    if job.columns.id is not None:
        ids = {held_in.id(row) for row in range(len(held_in))}
        shared["id"] = ids & {held_out.id(row) for row in range(len(held_out))}
    for column, values in shared.items():
        if values:
            batches = job.sources()["held-out"].batches(BadRows(OnBadRows.SKIP))
            records = (value for batch in batches for value in batch.column(column).to_pylist())
            # Its number: errors name no person.
            number = next((number for number, value in enumerate(records, start=1) if value in values), 0)
            raise InputError(
                f"{counted(len(values), column)} in both files, first in record {number} of '{job.held_out}': put"
                f" each {column} in one file only. Check that the files differ, and that each file has a single"
                " group"
            )


@contextmanager
def opened_models(job: CheckpointAudit, texts: AttackTexts, reporter: Reporter) -> Iterator[OpenedModels]:
    """Open all models of the audit, and keep a connection to the endpoint, if there is one, while texts are scored.

    Args:
        reporter: receives the expected cost at an endpoint.

    Raises:
        InputError: a reference is behind an endpoint but no endpoint is given, or an endpoint returns no
            log-probabilities.
    """
    if job.remote is None:
        served = next((name for name in job.models() if name.startswith(AT_ENDPOINT)), None)
        if served is not None:
            raise InputError(f"'{served}' is behind an endpoint: use heldin audit-endpoint")
        yield OpenedModels(job.context, job.adapter_base)
        return
    if Access.LOG_PROBABILITIES not in job.attack.access:
        with _by_text().reached_by_text(
            job.remote,
            job.models(),
            texts,
            job.attack,
            reporter,
            context=job.context,
            adapter_base=job.adapter_base,
        ) as by_text:
            yield by_text
        return
    with job.remote.reached(job.models(), texts, reporter, context=job.context, adapter_base=job.adapter_base) as there:
        yield there
