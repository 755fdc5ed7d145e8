"""Losses of target and base model on test texts of non-members. Neither model was trained on these texts."""

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from heldin.attacks.scoring import AttackTexts, scores_of
from heldin.audit.utility import UserLoss, Utility, utility_of
from heldin.base.errors import InputError
from heldin.base.files import cache_directory, text_sha256
from heldin.base.progress import Reporter
from heldin.models.preference_name import BETA
from heldin.models.score_cache import ScoreCache
from heldin.models.token_scores import TokenScores
from heldin.stages.measures.measure import Fingerprinted, Measure, loaded
from heldin.stages.measures.tables import LOSSES, losses_of


@dataclass(frozen=True)
class Losses(Measure[dict[str, UserLoss]]):
    """The losses of each non-member.

    Attributes:
        texts: test texts of each non-member.
        base: the model before fine-tuning, or the nearest model that is known.
        beta: beta of the loss of preference pairs (``models.preference.DirectPreference``).
    """

    name = "utility"
    file = LOSSES
    stage = "utility"

    texts: AttackTexts
    target: Fingerprinted
    base: Fingerprinted
    beta: float = BETA

    def made_from(self) -> str:
        """Return a hash of the models and the shortened texts."""
        pairs = (repr(self.beta),) if self.texts.are_pairs else ()
        return text_sha256(self.target.fingerprint, self.base.fingerprint, *self.texts.named(), *pairs)

    def compute(self, reporter: Reporter) -> dict[str, UserLoss]:
        """Score the texts under both models. Raises InputError if a text has no finite loss."""
        texts = self.texts.texts
        flat = self.texts.flat()
        with (
            closing(ScoreCache(cache_directory() / "scores")) as cache,
            reporter.track("utility", 2 * len(self.texts.read()), "texts") as advance,
        ):
            models = (loaded(self.target), loaded(self.base))
            scored = [scores_of(self.texts, model, cache, advance=advance) for model in models]
        if not all(math.isfinite(score.nats) for scores in scored for score in scores):
            raise InputError(
                "the loss on a non-member's test text is not finite, so the model is broken: lower"
                " finetune.learning_rate, and start a new run folder"
            )
        of_user: dict[str, list[tuple[TokenScores, TokenScores]]] = {user: [] for user in texts}
        for (user, _, _), target, base in zip(flat, *scored, strict=True):
            of_user[user].append((target, base))
        return {user: self._loss_of(user, len(own), of_user[user]) for user, own in texts.items()}

    def _loss_of(self, user: str, texts: int, scores: Sequence[tuple[TokenScores, TokenScores]]) -> UserLoss:
        tokens = sum(target.tokens for target, _ in scores)
        if self.texts.are_pairs:
            margins = np.array([target.total - base.total for target, base in scores])
            losses = np.logaddexp(0.0, -self.beta * margins)
            right = float(np.heaviside(margins, 0.5).mean())
            return UserLoss(user, texts, tokens, float(losses.mean()), math.log(2.0), right)
        loss, base_loss = (sum(each[i].nats for each in scores) / max(1, tokens) for i in range(2))
        return UserLoss(user, texts, tokens, loss, base_loss)

    def columns(self, values: dict[str, UserLoss]) -> Mapping[str, Any]:
        """Return one row per user."""
        users = list(values.values())
        return {
            "user": pa.array([user.user for user in users], pa.string()),
            "texts": pa.array([user.texts for user in users], pa.int64()),
            "tokens": pa.array([user.tokens for user in users], pa.int64()),
            "loss": pa.array([user.loss for user in users], pa.float64()),
            "base_loss": pa.array([user.base_loss for user in users], pa.float64()),
            "preferred": pa.array([user.preferred for user in users], pa.float64()),
        }

    def values(self, table: pa.Table) -> dict[str, UserLoss]:
        """Return the losses from a table."""
        return losses_of(table)

    def facts(self, values: dict[str, UserLoss], member: Mapping[str, bool]) -> Utility | None:
        """Return mean losses over users, and perplexities; None for fewer than ten users."""
        return utility_of(values)
