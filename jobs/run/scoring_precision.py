"""How far a lower precision of the models moves the leading statistic, on a sample of the scored texts."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import numpy as np
import torch

from heldin.attacks.config import AttackConfig
from heldin.attacks.protocol import TextStatistic
from heldin.attacks.scoring import AttackTexts, score_attacks
from heldin.attacks.statistics import get_attack, per_text
from heldin.audit.coarse import significant
from heldin.base.coins import keyed_order, seed_key
from heldin.base.files import cache_directory
from heldin.base.progress import Reporter
from heldin.models.loading import same_tokens
from heldin.models.score_cache import ScoreCache, ScoredModel
from heldin.record.precision import PrecisionFacts

USERS, TEXTS = 16, 2  # of the sample, and of each of its users: float32 takes longer, and may be on a slower device

Pair = tuple[ScoredModel, ScoredModel]


def measured_shift(
    attack: AttackConfig,
    texts: AttackTexts,
    models: Pair,
    whole: Callable[[], Pair],
    seed: int,
    reporter: Reporter,
) -> PrecisionFacts | None:
    """The leading statistic of a sample in the precision of the attack, less the same in float32; None in float32.

    Args:
        attack: which attack leads, and the precision.
        models: target and reference, as they scored.
        whole: loads both in float32.
        seed: public; the sample is drawn by it, without coins.
        reporter: is told what was found.
    """
    if attack.precision == "fp32":
        return None
    sample = _sample(texts, seed)
    found = _values(attack, sample, models)
    shifts = deviation = None
    try:
        exact = _values(attack, sample, whole())
        shifts, deviation = found - exact, float(exact.std())
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
    facts = PrecisionFacts(
        precision=attack.precision,
        statistic=attack.primary,
        values=len(found),
        # Two digits: the largest is one person's.
        mean_shift=None if shifts is None else significant(float(shifts.mean())),
        largest_shift=None if shifts is None else significant(float(np.abs(shifts).max())),
        deviation=None if deviation is None else significant(deviation),
    )
    reporter.say(f"precision: {facts.line}")
    return facts


def _sample(texts: AttackTexts, seed: int) -> AttackTexts:
    users = keyed_order(seed_key(seed), "precision", list(texts.texts))[:USERS]
    return replace(texts, texts={user: texts.texts[user][:TEXTS] for user in users})


def _values(attack: AttackConfig, sample: AttackTexts, models: Pair) -> np.ndarray:
    target, reference = models
    primary = get_attack(attack.primary)
    if not same_tokens(target.tokenizer, reference.tokenizer):
        primary = per_text(primary)
    with closing(ScoreCache(cache_directory() / "scores")) as cache:
        scored: list[TextStatistic] = score_attacks([primary], sample, target, reference, cache)
    return np.array([its.value for its in scored])
