"""Measurements during training: validation loss of members and non-members, and the attack's AUROC.

Kandpal et al. (2024) show these curves in Figure 3. The training loop receives the measurements as a callback, without
access to attacks or non-members.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import stats
from transformers import PreTrainedModel

from heldin.attacks.protocol import lift_to_users
from heldin.base.errors import ResumableError
from heldin.bounds.roc import auroc
from heldin.corpus.document import Document
from heldin.finetune.ranks import shared_out
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import score_documents
from heldin.models.objective import LANGUAGE_MODELLING, Objective
from heldin.models.token_scores import TokenScores

HELD_IN_LOSS = "held_in_loss"
HELD_OUT_LOSS = "held_out_loss"
PUBLIC_LOSS = "public_loss"
_NOT_FINITE = "the validation loss is not finite after step {}: lower finetune.learning_rate, and use a new run folder"


@dataclass(frozen=True)
class CurveTexts:
    """Documents for the curves; only their counted parts are scored.

    Attributes:
        held_in_attack: the attacker's texts of each member.
        held_out_attack: the attacker's texts of each non-member.
    """

    held_in_validation: Sequence[Document]
    held_out_validation: Sequence[Document]
    held_in_attack: Mapping[str, Sequence[Document]]
    held_out_attack: Mapping[str, Sequence[Document]]
    public_validation: Sequence[Document] = ()


class CurveEvaluation:
    """Measures one point of the curves per call. The reference is the base model, which heldin scores once at the
    start.

    Plain training stops if a text has no finite log-probability. A private run must not stop because of one user's
    text, because this would reveal the text (docs/theory.md#rules-of-a-private-step). Its curves omit such texts.
    """

    def __init__(
        self,
        texts: CurveTexts,
        base: LanguageModel,
        objective: Objective = LANGUAGE_MODELLING,
        *,
        private: bool,
        spread: bool = False,
    ) -> None:
        self._texts = texts
        self._base = base
        self._objective = objective
        self._private = private
        self._spread = spread
        self._attacked = [
            (user, text)
            for users in (texts.held_in_attack, texts.held_out_attack)
            for user, user_texts in users.items()
            for text in user_texts
        ]
        # Before the first step: the loop trains this very model in place.
        self._reference = [s.total for s in self._scored(base, [text for _, text in self._attacked])]
        self._before: dict[int, list[TokenScores]] = {}
        if objective.needs_reference:
            for some in (texts.held_in_validation, texts.held_out_validation, texts.public_validation):
                self._before[id(some)] = self._scored(base, some) if some else []

    def __call__(self, step: int, model: PreTrainedModel) -> dict[str, float]:
        """Return losses in nats per token, and the AUROC of the likelihood ratio (sums over a text, means over
        texts)."""
        # Without a fingerprint, and scored without the cache: the weights change from one call to the next.
        lm = LanguageModel(model, self._base.tokenizer, f"the model after step {step}", "")
        held_in = self._mean_loss(lm, self._texts.held_in_validation, step)
        held_out = self._mean_loss(lm, self._texts.held_out_validation, step)
        target = self._scored(lm, [text for _, text in self._attacked])
        ratios: dict[str, list[float]] = {}
        for (user, _), score, reference in zip(self._attacked, target, self._reference, strict=True):
            # Sums over tokens, as in equation 4 of the paper, whatever attack the audit leads with.
            # Nothing is known of a document without a counted token, and its ratio is no 0.
            if score.is_complete and math.isfinite(ratio := score.total - reference):
                ratios.setdefault(user, []).append(ratio)
        scores = lift_to_users("likelihood-ratio", ratios)
        sides = (self._texts.held_in_attack, self._texts.held_out_attack)
        held = [[user for user in side if user in ratios] for side in sides]
        if any(side and not users for side, users in zip(sides, held, strict=True)):
            raise ResumableError(_NOT_FINITE.format(step))
        area = auroc(*(scores.of(users) for users in held))
        public = self._texts.public_validation
        loss = self._mean_loss(lm, public, step)
        of_public = {} if loss is None else {PUBLIC_LOSS: loss}
        losses = {HELD_IN_LOSS: held_in, HELD_OUT_LOSS: held_out}
        return {**{name: loss for name, loss in losses.items() if loss is not None}, "auroc": area, **of_public}

    def _scored(self, lm: LanguageModel, texts: Sequence[Document]) -> list[TokenScores]:
        # Shards of a model are gathered for each pass, by all processes: they score the same texts together.
        if self._spread:
            return score_documents(lm, texts, finite=not self._private)
        return shared_out(texts, lambda own: score_documents(lm, own, finite=not self._private))

    def _mean_loss(self, lm: LanguageModel, texts: Sequence[Document], step: int) -> float | None:
        """Return the mean loss; None if no text has a counted part, as for an entity without texts set aside."""
        scored = self._scored(lm, texts) if texts else []
        kept = [number for number, text in enumerate(scored) if text.is_complete]
        if not kept:
            return None
        finite = [number for number in kept if math.isfinite(scored[number].nats)]
        if not finite:
            raise ResumableError(_NOT_FINITE.format(step))
        before = self._before.get(id(texts), [])
        target, reference = ([some[i] for i in finite] if some else [] for some in (scored, before))
        return self._objective.validation_loss(target, reference)


def gap_auroc_correlation(history: Sequence[Mapping[str, float]]) -> float | None:
    """Return the Spearman correlation, over a run's evaluations, between the AUROC and the difference of losses
    (non-members minus members).

    None if there are fewer than three points, the AUROC or the difference is constant, or a group has no validation
    texts.
    """
    if not all(HELD_IN_LOSS in point and HELD_OUT_LOSS in point for point in history):
        return None
    gaps = [point[HELD_OUT_LOSS] - point[HELD_IN_LOSS] for point in history]
    areas = [point["auroc"] for point in history]
    # Two points always have a rank correlation of 1 or -1; a constant has no ranks.
    if len(gaps) < 3 or len(set(gaps)) == 1 or len(set(areas)) == 1:
        return None
    return float(stats.spearmanr(gaps, areas).statistic)
