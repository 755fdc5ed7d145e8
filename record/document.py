"""The record of a run: one typed, versioned document with every number in a report.

The record is internal, and states that it contains exact statistics about private users. The record contains no user
names, texts or secrets, only commitments to the secrets. ``masked`` and ``without_names`` remove names from configs and
commands.
"""

import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import Field, ValidationError, model_validator

from heldin.audit.attack_results import AttackResult, Curve
from heldin.audit.flagged import Flagged
from heldin.audit.results import ExtractionFacts, MarkFacts, Results
from heldin.audit.utility import Utility
from heldin.base.artefacts import read_document, write_document
from heldin.base.errors import InputError
from heldin.base.kinds import Origin
from heldin.base.section import Facts
from heldin.models.model_config import PrecisionReason
from heldin.record.facts import (
    Ceiling,
    CellFacts,
    CorpusFacts,
    Environment,
    GradientNorms,
    ModelFacts,
    ScoredTexts,
    SplitFacts,
    TrainingFacts,
)
from heldin.record.planted_facts import PlantedFacts
from heldin.words.statement import Statement

# Keys whose values are patterns of user names, wherever they stand in a config.
_NAMES = {"include", "exclude"}
_SECTIONS = ("users", "public_validation")  # set as a whole, they hold such patterns
_AGAIN = "repeat the command that wrote this file"
F = TypeVar("F", bound=Facts)
Kind = Literal["run", "audit", "planted", "trainings"]


class PrecisionFacts(Facts):
    """The precision of the models for scoring, and how much it changed a sample of the primary attack's scores.

    Attributes:
        precision: name of the precision: bf16, fp16, int8 or nf4.
        reason: why the precision is not float32: the user set the precision, the target has this precision (auto), or
            memory is too small.
        statistic: the primary attack.
        values: number of texts in the sample; number of users, if the statistic uses all of a user's texts.
        mean_shift: mean difference from float32, with its sign; null if float32 did not fit into memory.
        largest_shift: largest difference from float32, without its sign; null if float32 did not fit into memory.
        deviation: standard deviation of the statistic in float32; null if float32 did not fit into memory.
    """

    precision: str
    reason: PrecisionReason = "asked"
    statistic: str
    values: int
    mean_shift: float | None
    largest_shift: float | None
    deviation: float | None

    @property
    def line(self) -> str:
        """Return the facts as a sentence."""
        why = {"own": ", the target's own", "memory": ", the target's own (the default where float32 does not fit)"}
        named = f"{self.precision}{why.get(self.reason, '')}"
        if self.mean_shift is None or self.largest_shift is None or self.deviation is None:
            return f"{named}; how far it moves scores was not measured: float32 did not fit into memory"
        return (
            f"{named}; moves {self.statistic} by {self.mean_shift:+.2g} on average and at most"
            f" {self.largest_shift:.2g} on a sample of {self.values}, whose standard deviation is {self.deviation:.2g}"
        )


class EffortFacts(Facts):
    """Time, tokens and memory of a training.

    Attributes:
        precisions: precisions of the training passes: fp32, bf16.
        devices: names of the devices, in the order in which they were first used.
        processes: largest number of simultaneous processes, each with its own device.
        tokens: number of predicted tokens in all records whose gradients were computed; a record counts once per step.
        step_seconds: duration of the steps, without evaluation and checkpoints.
        tokens_per_second: tokens per second of ``step_seconds``; null if there were no steps.
        gradients_per_second: gradients of records per second of ``step_seconds``; null if there were no steps.
        peak_memory: largest number of bytes that torch used on a GPU of the first process; null on a CPU.
        ways: methods that computed clipped gradients; empty for plain training.
        notices: messages for the user about the training, such as why a slower method was used.
    """

    precisions: list[str]
    devices: list[str]
    processes: int
    tokens: int
    step_seconds: float
    tokens_per_second: float | None
    gradients_per_second: float | None
    peak_memory: int | None
    ways: list[str]
    notices: list[str]


MEASURES: dict[str, type[Facts]] = {
    "utility": Utility,
    "precision": PrecisionFacts,
    "extraction": ExtractionFacts,
    "marks": MarkFacts,
}


class Body(Results):
    """The part of a record that ``heldin verify`` can recompute, because it follows from the folder's files.

    Attributes:
        config: the run's config without names of people, or the options of an audit.
        corpus: facts about the texts.
        split: members and non-members.
        target: the audited model.
        reference: the reference model of the primary attack.
        training: the training of the target; null if somebody else trained it.
        primary_attack: name of the primary attack.
        attacker_texts: number of scored texts.
        scored_texts: whether the scored texts are training texts.
        scoring_rule: the scored part of a text.
        per_text: whether heldin compared only scores of whole texts, because target and reference may have different
            tokenizers.
        left_out: attacks in the plan that did not run, and the reasons.
        resamples: number of bootstrap resamples behind each interval.
        cell: the run's position in a sweep; null for a run outside a sweep.
        planted: the planted training set that somebody else trained on; null for all other records.
        effort: time, tokens and memory of the training; null if heldin trained nothing.
        measures: facts of each measure, by its name.
        kinds: kinds in the config from other packages, and their code.
    """

    config: dict[str, Any]
    corpus: CorpusFacts
    split: SplitFacts
    target: ModelFacts
    reference: ModelFacts
    training: TrainingFacts | None
    primary_attack: str
    attacker_texts: int
    scored_texts: ScoredTexts
    scoring_rule: Statement
    per_text: bool
    left_out: list[Statement] = Field(default_factory=list)
    resamples: int
    cell: CellFacts | None = None
    planted: PlantedFacts | None = None
    effort: EffortFacts | None = None
    measures: dict[str, dict[str, Any]] = Field(default_factory=dict)
    kinds: list[Origin] = Field(default_factory=list)

    @model_validator(mode="after")
    def _facts_of_known_measures_fit(self) -> "Body":
        for name, kind in MEASURES.items():
            if name in self.measures:
                kind.model_validate(self.measures[name])
        return self

    def facts_of(self, measure: str, kind: type[F]) -> F | None:
        """Return the facts of a measure; None if it was not measured.

        Raises:
            InputError: the facts in the record do not have this type.
        """
        kept = self.measures.get(measure)
        try:
            return None if kept is None else kind.model_validate(kept)
        except ValidationError as error:
            raise InputError(f"the record's measure '{measure}' cannot be read: {_AGAIN}") from error

    @property
    def utility(self) -> Utility | None:
        """Return how well the model predicts non-members' test texts."""
        return self.facts_of("utility", Utility)

    @property
    def precision(self) -> PrecisionFacts | None:
        """Return the precision of scoring and its effect on scores; None for float32."""
        return self.facts_of("precision", PrecisionFacts)

    @property
    def extraction(self) -> ExtractionFacts | None:
        """Return how many people have training texts that sampling would emit."""
        return self.facts_of("extraction", ExtractionFacts)

    @property
    def marks(self) -> MarkFacts | None:
        """Return the exposure of canary users' marks."""
        return self.facts_of("marks", MarkFacts)


class Record(Body):
    """All values that a report prints about one run or one audit.

    Attributes:
        internal: true, because the record has exact statistics about private users: do not publish it.
        kind: kind of the record: a run, or an audit of a checkpoint, of a planted training, or of many independent
            trainings.
        name: name of the run or audit, chosen by its user.
        created: UTC time at which the record was written.
        command: the command, without names of people.
        gradient_norms: gradient norms of canary users' and real users' records; null if there are no canary users.
        environment: versions of the software, and the machine.
    """

    internal: Literal[True] = True
    kind: Kind
    name: str
    created: str
    command: str
    gradient_norms: GradientNorms | None = None
    environment: Environment

    def counted_attack(self) -> AttackResult:
        """Return the attack whose flagged people page one counts: the deciding attack, or else the primary attack.

        If the deciding attack has a changed setting, the result is the primary attack, because the record then has no
        curve for the deciding attack.
        """
        strongest = self.decision.decision.strongest
        return self.primary() if strongest is None or self.decides_by_a_dial() else self.attacks[strongest]

    def decides_by_a_dial(self) -> bool:
        """Return whether the deciding attack has no curve here, because one of its settings differs from the primary
        attack's."""
        # An index into the whole family, in which scores with a dial changed come after those of ``attacks``.
        strongest = self.decision.decision.strongest
        return strongest is not None and (strongest >= len(self.attacks) or self.attacks[strongest].curve is None)

    def flagged(self) -> Flagged | None:
        """Return the counts of flagged people on page one; None for independent trainings, or if there are no
        counts."""
        return None if self.trainings is not None else self.decision.flagged

    def allowed_share(self, others_share: float) -> float | None:
        """Return the largest expected share of members that any attack can flag if the guarantee holds.

        Args:
            others_share: share of non-members that the attack flags.

        Returns:
            The share; None without a guarantee for the audited people.
        """
        ceiling = self.ceiling()
        return None if ceiling is None else float(np.interp(others_share, ceiling.fpr, ceiling.tpr))

    def curve(self) -> Curve:
        """Return the curve of the primary attack. Every record has this curve."""
        # The leading score is always among those shown (``audit.answer.shown_of``).
        curve = self.primary().curve
        assert curve is not None
        return curve

    def ceiling(self) -> Ceiling | None:
        """Return the bound on ROC curves for audited users; None without a guarantee for them."""
        if self.training is None:
            return None
        return self.training.ceiling if self.split.audited == "users" else self.training.ceiling_of_entities

    def primary(self) -> AttackResult:
        """Return the result of the primary attack with the first configured aggregation (by default the mean)."""
        return next(result for result in self.attacks if result.attack == self.primary_attack)


def write_new_record(
    body: Body,
    environment: Environment,
    folder: Path,
    *,
    name: str,
    command: str,
    gradient_norms: GradientNorms | None = None,
) -> Record:
    """Write a record of new results to ``folder``/record.json with the current time, and return it.

    If a record with the same results exists, keep it with its time and command, because somebody may have signed its
    report.

    Args:
        body: the part of the record that follows from the folder's files.
        environment: software and machine of the computation.
        folder: folder of the run or audit.
        name: name of the run or audit.
        command: the command line, without user names.
        gradient_norms: gradient norms of single records; None if not measured.
    """
    record = Record(
        **dict(body),
        kind=_kind(body),
        name=name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        gradient_norms=gradient_norms,
        environment=environment,
    )
    path = folder / "record.json"
    if (earlier := _readable(path)) is not None and _said(earlier) == _said(record):
        return earlier
    write_record(record, path)
    return record


def _readable(path: Path) -> Record | None:
    try:
        return read_record(path)
    except InputError:
        return None


def _said(record: Record) -> dict[str, Any]:
    """Return the content of a record for comparison, as in a file, without time, command and environment."""
    content: dict[str, Any] = json.loads(record.model_dump_json(exclude={"created", "command", "environment"}))
    return content


def _kind(body: Body) -> Kind:
    if body.trainings is not None:
        return "trainings"
    if body.planted is not None:
        return "planted"
    # An audit's model was trained by somebody else.
    return "audit" if body.training is None else "run"


def write_record(record: Record, path: Path) -> None:
    """Write ``record`` completely or not at all. Fields that describe the record precede its results."""
    content = json.loads(record.model_dump_json())
    # Inherited fields would come first: who opens the file sees this before any number about users.
    first = [name for name in Record.model_fields if name not in Body.model_fields and name != "environment"]
    ordered = {name: content[name] for name in (*first, *(name for name in content if name not in first))}
    write_document(path, ordered, private=False)


def read_record(path: Path, *, checked: bool = True) -> Record:
    """Read a record.

    Args:
        checked: whether to refuse a record that was changed after it was written.

    Raises:
        InputError: there is no record, its schema version is another, or the document is not a record.
    """
    if not path.is_file():
        folder = path.parent
        cells = next((f", such as '{cell.parent}'" for cell in sorted(folder.glob("cells/*/*/record.json"))), "")
        of_a_sweep = f"; '{folder}' is the folder of a sweep: name one of its training runs{cells}"
        remedy = of_a_sweep if (folder / "sweep.json").is_file() else ": name the folder of a finished run or audit"
        raise InputError(f"no record at '{path}'{remedy}")
    content = read_document(path, _AGAIN, checked=checked)
    try:
        return Record.model_validate(content)
    except ValidationError as error:
        # A damaged record has an error at every field that is missing; the first one says enough.
        first = error.errors()[0]
        raise InputError(
            f"'{path}' is not a complete record ({'.'.join(map(str, first['loc']))}: {first['msg']}): repeat the"
            " command that wrote this file"
        ) from error


def masked(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config with each list of user-name patterns replaced by the number of patterns."""
    return {key: _masked(value, key) for key, value in config.items()}


def without_names(command: str) -> str:
    """Return the command without the value of any ``--set`` that may contain user names."""
    return shlex.join(_without_names(word) for word in shlex.split(command))


def _without_names(word: str) -> str:
    key, equals, _ = word.partition("=")
    # Anywhere in the word, not only in its key: ``corpus={users: {include: [...]}}`` names people in the
    # value, and ``--set=corpus.users.include=[...]`` is one word whose first "=" comes before the key. A value
    # that is masked needlessly costs nothing.
    naming = key.endswith(_SECTIONS) or any(name in word for name in _NAMES)
    return f"{key}=..." if equals and naming else word


def _masked(value: Any, key: str) -> Any:
    # The number alone: how many patterns there are tells a reader that users were picked, and not whom.
    if key in _NAMES and isinstance(value, list):
        return f"{len(value)} pattern(s)"
    if isinstance(value, list | tuple):
        return [_masked(part, "") for part in value]
    return masked(value) if isinstance(value, dict) else value
