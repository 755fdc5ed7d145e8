"""Whole trainings with the stated noise. Coins decide membership, and an observer of every step infers membership.

A gradient canary's score is the likelihood ratio of its coordinate or direction. The trainer processes text canaries
like all texts. Each text canary uses one token that nobody else uses. Its score uses the embedding row of this token,
along the row's gradient at the weights of the step. Other texts change this row only through the output head, in
proportion to the small probability of the token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from heldin.base.errors import InputError
from heldin.bounds.roc import auroc
from heldin.bounds.scores import LabelledScores
from heldin.models.loading import LanguageModel
from heldin.white_box import laws
from heldin.white_box.canaries import Array, flat
from heldin.white_box.check import LEVEL, Check, silent, tested
from heldin.white_box.oracle import contribution
from heldin.white_box.stage import EMBEDDING, Stage, own_rows
from heldin.white_box.trainers import Trainer, loop_trainer, stated_optimizer, watched
from heldin.white_box.weight_checks import Replay, watching

_SAMPLE = 5  # text canaries whose mean share of the gradient in their own row is used for all
_LOOKS = 250  # how often, at most, a training computes the gradients of the text canaries
_FEWEST = 10  # of each side, for an AUROC


@dataclass(frozen=True, eq=False)
class Observation:
    """The observations during one watched training.

    Attributes:
        scores: log likelihood ratio of each gradient canary, shape (m,).
        sums: sum of each gradient canary's projections over the steps, shape (m,).
        member: coins of the gradient canaries, shape (m,).
        noise: the noise in quiet coordinates, divided by its stated deviation, shape (T, P).
        text_scores, text_member: scores and coins of the text canaries, shape (texts,).
        moved: change of each gradient canary's coordinate during training, shape (m,); empty for random directions.
        recomputed: distance of the weights from those of the stated optimizer, in units of rounding; None without a
            stated optimizer.
    """

    scores: Array
    sums: Array
    member: NDArray[np.bool_]
    noise: NDArray[np.float32]
    text_scores: Array
    text_member: NDArray[np.bool_]
    moved: Array
    recomputed: float | None


def observe(stage: Stage, key: bytes, trainer: Trainer = loop_trainer) -> Observation:
    """Train once under ``key`` with the canaries that the coins include, and watch every step."""
    mechanism, canaries = stage.mechanism, stage.canaries
    member, text_member = stage.coins(key), stage.text_coins(key)
    base = stage.model()
    places = np.concatenate([canaries.watched, canaries.quiet])
    rows = _OwnRows(stage, base)
    stream = np.zeros((mechanism.steps, places.size), dtype=np.float32)
    of_texts = np.zeros((mechanism.steps, text_member.size))

    every = -(-mechanism.steps // _LOOKS)

    def see(step: int, released: NDArray[np.float32]) -> None:
        if not np.isfinite(released).all():
            raise InputError(
                f"the trainer released a gradient at step {step} that is not finite, so it cannot be audited: correct"
                " the trainer"
            )
        stream[step] = released[places]
        if step % every == 0:
            # An older direction costs sharpness and no validity: a score may be any function of what was released.
            rows.look()
        of_texts[step] = rows.read(released)  # now: d numbers for each step are too many to keep

    before = flat(base)  # a copy, as training changes the weights in place
    stated = stated_optimizer(trainer)
    replay = Replay(base, stated, mechanism.steps) if stated else None
    shown = watching(trainer, replay.show) if replay else trainer
    watched(shown, base, stage.training(key, member, text_member), stage.sequences, see)
    moved = (flat(base) - before)[canaries.coordinates] if canaries.coordinates is not None else np.zeros(0)
    seen = canaries.projections(stream[:, : canaries.watched.size])
    noise, rate, coefficients = mechanism.noise_multiplier, mechanism.sampler.rate, mechanism.sampler.coefficients
    return Observation(
        scores=log_likelihood_ratios(seen, noise, rate, mechanism.members, coefficients=coefficients),
        sums=seen.sum(axis=0),
        member=member,
        noise=stream[:, canaries.watched.size :] / np.float32(noise),
        text_scores=log_likelihood_ratios(
            of_texts, noise, rate, mechanism.members, size=rows.size, coefficients=coefficients
        ),
        text_member=text_member,
        moved=moved,
        recomputed=replay.furthest() if replay else None,
    )


def log_likelihood_ratios(
    projections: Array,
    noise_multiplier: float,
    rate: float,
    group_size: int = 1,
    size: float = 1.0,
    coefficients: Sequence[float] = (1.0,),
) -> Array:
    """Return each canary's log of P(all steps | in) / P(all steps | out), shape (m,).

    One step is N(a Binom(G, q), s^2) against N(0, s^2) in units of the sensitivity (Charles et al. 2024, Theorem 1,
    with a = 1). Its log ratio is ln sum_k Binom(k; G, q) exp((k a x - k^2 a^2 / 2) / s^2). Steps are independent given
    membership. By the Neyman-Pearson lemma, no other test of these projections has a higher ROC curve. For a = 1, this
    curve is the accountant's ceiling.

    With banded noise, a contribution at step t also appears in later steps, with the coefficients c of C. The relevant
    value is then the sum of c_k x_(t+k), and the norm of c replaces 1. The canary's group of steps is unknown, so the
    ratio is the mean over all groups.

    Args:
        projections: released values along each canary, in units of the sensitivity, shape (T, m).
        noise_multiplier: s.
        rate: q, the sampling rate of a unit.
        group_size: G, the number of units per canary.
        size: a, the contribution of a unit, in units of the sensitivity.
        coefficients: c; the single number 1 for independent noise.
    """
    bands = len(coefficients)
    totals = np.zeros((bands, projections.shape[1]))
    counts = np.arange(group_size + 1)
    weights = stats.binom.logpmf(counts, group_size, rate)  # (G + 1,)
    # Step by step: all steps at once would take T m (G + 1) numbers.
    for step in range(len(projections)):
        reach = projections[step : step + bands]
        own = np.array(coefficients[: len(reach)])
        row, square = own @ reach, float(own @ own)
        each = np.full(row.size, -np.inf)
        # At rate 1 every number but G has probability 0, whose logarithm is left out.
        for k, weight in zip(size * counts[np.isfinite(weights)], weights[np.isfinite(weights)], strict=True):
            each = np.logaddexp(each, weight + (k * row - 0.5 * k * k * square) / noise_multiplier**2)
        totals[step % bands] += each
    return np.asarray(np.logaddexp.reduce(totals, axis=0) - math.log(bands))


def auroc_with_error(held_in: Array, held_out: Array) -> tuple[float, float]:
    """Return the AUROC and its standard error (DeLong, DeLong, Clarke-Pearson 1988) for independent scores."""
    ordered_in, ordered_out = np.sort(held_in), np.sort(held_out)

    def below(values: Array, others: Array) -> Array:
        # The mean of both counts a tie as one half.
        strictly, or_equal = (np.searchsorted(others, values, side) for side in ("left", "right"))
        return np.asarray(0.5 * (strictly + or_equal) / others.size)

    of_in, of_out = below(held_in, ordered_out), below(held_out, ordered_in)
    variance = of_in.var(ddof=1) / of_in.size + of_out.var(ddof=1) / of_out.size
    return auroc(held_in, held_out), math.sqrt(float(variance))


def pooled(seen: Sequence[Observation]) -> LabelledScores:
    """Return the scores of the gradient canaries of all trainings as one sample."""
    return LabelledScores(np.concatenate([s.scores for s in seen]), np.concatenate([s.member for s in seen]))


def coin_checks(seen: Sequence[Observation], ceiling: float) -> list[Check]:
    """Check AUROCs against the accountant's ceiling, which limits every attacker, even one who has only the final
    weights.

    Two checks use the final weights: whether a canary's coordinate moves against its gradient, and whether it moves
    less than other coordinates. It would move less if an optimizer divided by gradients that it saw before the noise.
    """
    texts = np.concatenate([s.text_scores for s in seen]), np.concatenate([s.text_member for s in seen])
    checks = [
        _area("AUROC of canaries, at most", "gradient canaries", *_joined(pooled(seen)), ceiling),
        _area("AUROC of text canaries, at most", "text canaries", *texts, ceiling),
    ]
    moved = np.concatenate([s.moved for s in seen])
    # A random direction has no coordinate of its own whose way could be followed.
    if not moved.size:
        return [*checks, silent("AUROC by weights", "canaries", "the weights, because directions are random")]
    member = np.concatenate([s.member for s in seen])
    against, less = "gradient canaries by where the weights went", "gradient canaries by how far the weights went"
    return [
        *checks,
        _area("AUROC by where the weights went, at most", against, -moved, member, ceiling),  # descent goes against it
        _area("AUROC by how far the weights went, at most", less, -np.abs(moved), member, ceiling),
    ]


def _joined(scores: LabelledScores) -> tuple[Array, NDArray[np.bool_]]:
    return scores.scores, scores.member


def _area(name: str, kind: str, scores: Array, member: NDArray[np.bool_], ceiling: float) -> Check:
    """Check that the AUROC of canaries does not exceed the accountant's ceiling. A lower AUROC is not a mistake."""
    number = int(min(member.sum(), (~member).sum()))
    if number < _FEWEST:
        return silent(name, "canaries", f"the AUROC of {kind}, because one group has only {number}")
    area, error = auroc_with_error(scores[member], scores[~member])
    finding = laws.areas(area, error, ceiling, number, LEVEL)
    if math.isnan(finding.smallest):
        return silent(name, "canaries", f"the AUROC of {kind}: {number} per group are too few to exceed {ceiling:.3f}")
    detects = f"an AUROC of {finding.smallest:.3f} of {kind} in whole training runs (allowed {ceiling:.3f})"
    return tested(name, "canaries", finding, ceiling, detects)


class _OwnRows:
    """Projects steps on the text canaries' embedding rows, each along the canary's gradient in its row.

    ``size`` is the norm of a contribution in the canary's row before training, in units of the sensitivity.
    """

    def __init__(self, stage: Stage, base: LanguageModel) -> None:
        texts = [person.records[0] for person in stage.people.canaries]
        self._table = dict(base.model.named_parameters())[EMBEDDING]
        self._base, self._ids = base, torch.tensor([list(text) for text in texts])
        self._tokens, self._places = list(stage.people.own_tokens), own_rows(stage)
        # At the weights before training, of a few canaries: a statistic need not be the best one to be valid.
        some = range(0, len(texts), max(1, len(texts) // _SAMPLE))
        parts = [contribution(base, (texts[i],), stage.clip_norm)[self._places[i]] for i in some]
        self._along: Array = np.zeros(self._places.shape)
        self.size = float(np.mean([np.linalg.norm(part) for part in parts]))

    def look(self) -> None:
        """Recompute the directions at the current weights."""
        # one pass for all texts: each has a token of its own, so rows do not mix
        with torch.enable_grad():
            loss = self._base.model(input_ids=self._ids, labels=self._ids, use_cache=False).loss
            (whole,) = torch.autograd.grad(loss, [self._table])
        along = whole[self._tokens].double().numpy()
        along /= np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-300)  # (texts, hidden)
        self._along = along

    def read(self, released: NDArray[np.float32]) -> Array:
        """Return the projection of a step on each row's direction, shape (texts,), in units of the sensitivity."""
        return np.asarray((released[self._places] * self._along).sum(axis=1))
