"""Precision: how far lower precision of the models shifts the primary statistic, on a sample of the scored texts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from heldin.attacks.config import AttackConfig
from heldin.attacks.kinds import get_attack, per_text
from heldin.attacks.scoring import AttackTexts
from heldin.audit.coarse import significant
from heldin.base.coins import keyed_order, seed_key
from heldin.base.files import text_sha256
from heldin.base.progress import Reporter, SilentReporter
from heldin.models.model_config import PrecisionReason
from heldin.models.score_cache import ScoredModel
from heldin.models.tokens import same_tokens
from heldin.record.document import PrecisionFacts
from heldin.stages.measures.measure import Fingerprinted, Measure, loaded
from heldin.stages.measures.scores import statistics_under
from heldin.stages.measures.tables import PRECISION

USERS, TEXTS = 16, 2  # of the sample, and of each of its users: float32 takes longer, and may be on a slower device

Pair = tuple[Fingerprinted, Fingerprinted]


@dataclass(frozen=True, eq=False)
class Shift:
    """The primary statistic of each text in a sample.

    Attributes:
        scored: statistic in the precision of the attack, shape (n,).
        exact: statistic in float32, shape (n,); None if float32 did not fit into memory.
    """

    scored: npt.NDArray[np.float64]
    exact: npt.NDArray[np.float64] | None


@dataclass(frozen=True)
class PrecisionShift(Measure[Shift]):
    """The primary statistic of each text in a sample, in the precision of the attack and in float32.

    Attributes:
        attack: config of the primary attack, and its precision, which is not float32.
        texts: the scored texts, from which heldin draws the sample.
        models: target and reference, as used for scoring.
        in_full: function that loads both models in float32.
        seed: public seed that draws the sample, independent of coins.
        reason: reason why the models are not in float32.
    """

    name = "precision"
    file = PRECISION
    stage = "scoring"

    attack: AttackConfig
    texts: AttackTexts
    models: Pair
    in_full: Callable[[], tuple[ScoredModel, ScoredModel]]
    seed: int
    reason: PrecisionReason = "asked"

    def made_from(self) -> str:
        """Return a hash of the models, the attack and the sample."""
        target, reference = (model.fingerprint for model in self.models)
        return text_sha256(target, reference, self.attack.model_dump_json(exclude={"turns"}), *self._sample().named())

    def compute(self, reporter: Reporter) -> Shift:
        """Score the sample in the precision of the attack, and in float32 if memory suffices."""
        target, reference = map(loaded, self.models)
        scored, exact = self._values((target, reference)), None
        # On a CPU nothing refuses what does not fit: the operating system ends the process.
        if self.reason != "memory":
            try:
                exact = self._values(self.in_full())
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
        shift = Shift(scored, exact)
        reporter.say(f"precision: {self.facts(shift, {}).line}")
        return shift

    def columns(self, values: Shift) -> Mapping[str, Any]:
        """Return one row per text of the sample."""
        columns = {"scored": pa.array(values.scored, pa.float64())}
        return columns if values.exact is None else {**columns, "exact": pa.array(values.exact, pa.float64())}

    def values(self, table: pa.Table) -> Shift:
        """Return the statistics from a table."""
        exact = np.asarray(table["exact"]) if "exact" in table.column_names else None
        return Shift(np.asarray(table["scored"]), exact)

    def facts(self, values: Shift, member: Mapping[str, bool]) -> PrecisionFacts:
        """Return the size of the shift."""
        exact = values.exact
        shifts = None if exact is None else values.scored - exact
        return PrecisionFacts(
            precision=self.attack.precision,
            reason=self.reason,
            statistic=self.attack.primary,
            values=len(values.scored),
            # Two digits: the largest is one person's.
            mean_shift=None if shifts is None else significant(float(shifts.mean())),
            largest_shift=None if shifts is None else significant(float(np.abs(shifts).max())),
            deviation=None if exact is None else significant(float(exact.std())),
        )

    def _sample(self) -> AttackTexts:
        texts = self.texts.texts
        users = keyed_order(seed_key(self.seed), "precision", list(texts))[:USERS]
        return replace(self.texts, texts={user: texts[user][:TEXTS] for user in users})

    def _values(self, models: tuple[ScoredModel, ScoredModel]) -> npt.NDArray[np.float64]:
        target, reference = models
        primary = get_attack(self.attack.primary)
        if not same_tokens(target.tokenizer, reference.tokenizer):
            primary = per_text(primary)
        sampling = self.attack.sampling
        scored = statistics_under([primary], self._sample(), target, reference, sampling, SilentReporter())
        return np.array([statistic.value for statistic in scored])
