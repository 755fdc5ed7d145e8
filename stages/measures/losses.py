"""Losses: of target and base model on test texts of held-out users, on which neither was trained."""

import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from heldin.attacks.scoring import AttackTexts, scores_of
from heldin.audit.utility import UserLoss, Utility, utility_of
from heldin.base.errors import InputError
from heldin.base.files import cache_directory, text_sha256
from heldin.base.progress import Reporter
from heldin.models.score_cache import ScoreCache
from heldin.stages.measures.measure import Fingerprinted, Measure, loaded
from heldin.stages.measures.tables import LOSSES, losses_of


@dataclass(frozen=True)
class Losses(Measure[dict[str, UserLoss]]):
    """Losses by held-out user.

    Attributes:
        texts: test texts by held-out user.
        base: the model before fine-tuning, or what is known of it that is nearest to it.
    """

    name = "utility"
    file = LOSSES
    stage = "utility"

    texts: AttackTexts
    target: Fingerprinted
    base: Fingerprinted

    def made_from(self) -> str:
        """Return a hash of the models and the cut texts."""
        return text_sha256(self.target.fingerprint, self.base.fingerprint, *self.texts.named())

    def compute(self, reporter: Reporter) -> dict[str, UserLoss]:
        """Score the texts under both models. Raises InputError if a text has no finite loss."""
        texts = self.texts.texts
        flat = self.texts.flat()
        with (
            closing(ScoreCache(cache_directory() / "scores")) as cache,
            reporter.track("utility", 2 * len(flat), "texts") as advance,
        ):
            models = (loaded(self.target), loaded(self.base))
            scored = [scores_of(self.texts, model, cache, advance=advance) for model in models]
        tokens = dict.fromkeys(texts, 0)
        sums = {user: [0.0, 0.0] for user in texts}
        for (user, _, _), *scores in zip(flat, *scored, strict=True):
            tokens[user] += len(scores[0].logprobs)
            sums[user] = [total - score.total for total, score in zip(sums[user], scores, strict=True)]
        if not all(math.isfinite(loss) for losses in sums.values() for loss in losses):
            raise InputError(
                "a held-out user's test text has no finite loss: the model is broken; lower finetune.learning_rate and"
                " start a new run folder"
            )
        return {
            user: UserLoss(user, len(own), tokens[user], *(loss / max(1, tokens[user]) for loss in sums[user]))
            for user, own in texts.items()
        }

    def columns(self, values: dict[str, UserLoss]) -> Mapping[str, Any]:
        """Return one row for each user."""
        users = list(values.values())
        return {
            "user": pa.array([user.user for user in users], pa.string()),
            "texts": pa.array([user.texts for user in users], pa.int64()),
            "tokens": pa.array([user.tokens for user in users], pa.int64()),
            "loss": pa.array([user.loss for user in users], pa.float64()),
            "base_loss": pa.array([user.base_loss for user in users], pa.float64()),
        }

    def values(self, table: pa.Table) -> dict[str, UserLoss]:
        """Return the losses of a table."""
        return losses_of(table)

    def facts(self, values: dict[str, UserLoss], member: Mapping[str, bool]) -> Utility | None:
        """Return means over users, and perplexities; None for fewer than ten users."""
        return utility_of(values)
