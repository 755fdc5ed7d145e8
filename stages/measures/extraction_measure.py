"""Extraction: the probability that the audited model emits users' training texts, and other texts with the same words.

A key that exists before training decides which part of each text is requested. Membership coins use the key for another
purpose. Runs of a sweep with shared coins therefore request the same windows. heldin joins probabilities with
membership only to count people.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from heldin.attacks.extraction import ExtractionConfig, TextProbabilities
from heldin.attacks.windows import Windows, found_in, found_in_others, require_a_window, windows_of
from heldin.audit.extraction import extraction_facts
from heldin.audit.results import ExtractionFacts
from heldin.base.files import text_sha256
from heldin.base.progress import Reporter
from heldin.corpus.document import Document
from heldin.models.tokens import require_context, same_tokens
from heldin.stages.measures.measure import Fingerprinted, Measure, MeasuredUsers, MeasureOptions, loaded_here

if TYPE_CHECKING:
    from heldin.models.loading import LanguageModel

_ELSEWHERE = ("in_others", "in_public")


class ExtractionOptions(ExtractionConfig, MeasureOptions):
    """Extraction: tests whether an attacker who samples from the model would obtain users' training texts. From each
    text, heldin takes a prefix and a suffix. heldin then computes the probability that the model continues the prefix
    with the suffix."""

    of_training_texts: ClassVar[bool] = True

    def measure(self, subjects: MeasuredUsers, models: tuple[Fingerprinted, Fingerprinted]) -> "Extraction":
        """Return the measure."""
        return Extraction(self, subjects, models)

    def check(self, subjects: MeasuredUsers | None, model: "LanguageModel") -> None:
        """Check that the model's context, and at least one text, are long enough for a window. Raises InputError if the
        check fails."""
        require_context(model, self.length)
        if subjects is not None:
            require_a_window(subjects.known(self.texts_per_user), model.tokenizer, self, subjects.visible)

    def check_lengths(self, limits: Mapping[str, int]) -> None:
        """Check that a window fits the limits on tokens. Raises ValueError if the window is too long."""
        for name, limit in limits.items():
            if self.length > limit:
                raise ValueError(
                    f"measures.extraction: prefix + suffix = {self.length} tokens is above {name} = {limit}. Lower"
                    " prefix or suffix"
                )

    def described(self) -> str:
        """Return a text about the windows and the number of queries."""
        queries = ", ".join(f"{count:,}" for count in self.queries)
        return f"{self.suffix} tokens after {self.prefix} of each training text, {queries} queries"


@dataclass(frozen=True)
class Extraction(Measure[TextProbabilities]):
    """The probability of each window's suffix under both models, and the other texts with this suffix.

    Attributes:
        config: options of the measure.
        subjects: users and their texts; the key of ``subjects`` determines where the windows begin.
        models: the audited model and the reference; the measure does not use a reference with other tokens.
    """

    stage = "extraction"

    config: ExtractionConfig
    subjects: MeasuredUsers
    models: tuple[Fingerprinted, Fingerprinted]

    def made_from(self) -> str:
        """Return a hash of models, texts and windows."""
        target, reference = (model.fingerprint for model in self.models)
        texts = repr([(user, *texts) for user, texts in self._texts().items()])
        asked = (self.config.model_dump_json(), str(self.subjects.visible), self.subjects.key.hex())
        return text_sha256(target, reference, *asked, texts)

    def _texts(self) -> Mapping[str, Sequence[Document]]:
        return self.subjects.known(self.config.texts_per_user)

    def windows(self, model: "LanguageModel") -> Windows:
        """Return one window per text. Raises InputError if no text is long enough."""
        subjects = self.subjects
        return windows_of(self._texts(), model.tokenizer, self.config, subjects.key, subjects.visible)

    def compute(self, reporter: Reporter) -> TextProbabilities:
        """Compute the probabilities. Raises InputError if there is no window."""
        from heldin.models.continuations import continuation_logprobs  # of torch, which keys of a config do without

        target, reference = map(loaded_here, self.models)
        config, windows = self.config, self.windows(target)
        compared = same_tokens(target.tokenizer, reference.tokenizer)
        models = [target, *([reference] if compared else [])]
        with reporter.track("extraction", len(models) * len(windows.rows), "texts") as advance:
            under = [
                windows.spread(
                    continuation_logprobs(
                        model,
                        windows.tokens,
                        config.prefix,
                        temperature=config.temperature,
                        top_k=config.top_k,
                        advance=advance,
                    )
                )
                for model in models
            ]
        if not compared:
            reporter.say(f"extraction: '{reference.name}' has another tokenizer than the target, so it is not used")
        others = in_public = None
        if self.subjects.training is not None:
            others = windows.marked(found_in_others(windows, self.subjects.training(), target.tokenizer, config))
        if public := self.subjects.public():
            in_public = windows.marked(found_in(windows, public, target.tokenizer, config))
        return TextProbabilities(windows.users, under[0], under[1] if compared else None, others, in_public)

    def columns(self, values: TextProbabilities) -> Mapping[str, Any]:
        """Return one row per text, without columns of unknown values."""
        columns = {"user": pa.array(list(values.users), pa.string()), "target": pa.array(values.target, pa.float64())}
        if values.reference is not None:
            columns["reference"] = pa.array(values.reference, pa.float64())
        for name in _ELSEWHERE:
            if (elsewhere := getattr(values, name)) is not None:
                columns[name] = pa.array(elsewhere, pa.bool_())
        return columns

    def values(self, table: pa.Table) -> TextProbabilities:
        """Return the probabilities from a table."""
        columns = {name: np.asarray(table[name]) for name in table.column_names if name != "user"}
        others = (columns.get(name) for name in ("reference", *_ELSEWHERE))
        return TextProbabilities(table["user"].to_pylist(), columns["target"], *others)

    def facts(self, values: TextProbabilities, member: Mapping[str, bool]) -> ExtractionFacts:
        """Return numbers of members and of non-members."""
        return extraction_facts(values, member, self.subjects.canaries, self.config)
