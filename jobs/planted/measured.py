"""What ``heldin plant`` measures before any coin: which attack depends on length, and what text alone gives away."""

import itertools
from collections.abc import Mapping

import numpy as np
from scipy import stats

from heldin.attacks.joint import JointAttack
from heldin.attacks.statistics import LikelihoodRatio, get_attack
from heldin.audit.blind import text_separation
from heldin.audit.headline import LENGTH_DROWNS
from heldin.base.coins import keyed_order, seed_key
from heldin.corpus.sources.rows import BadRows
from heldin.corpus.split import Part
from heldin.jobs.planted.config import PlantConfig
from heldin.jobs.planted.training_set import TrainingSet
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import score_texts
from heldin.models.token_scores import TokenScores
from heldin.record.planted import FormFacts
from heldin.stages.sides.data import RunData

_FIRST = 2000  # rows from which texts are drawn
_TEXTS = 200  # whose scores are held against their lengths
_ROWS = 1000  # canary rows, and as many real ones, that a bag of words is fitted and tested on
# The attack of the paper first, then those that length moves less.
_PREFERRED = ("likelihood-ratio", "likelihood-ratio-per-token", "loss", "zlib", "min-k++")


def length_correlations(config: PlantConfig, source: TrainingSet, base: LanguageModel) -> dict[str, float]:
    """Return by attack the rank correlation of its score with a text's length, under the reference model.

    A likelihood ratio is taken to the reference's own likelihood: what length does to either side, it does to both.
    """
    rows = itertools.islice(source.rows(BadRows(skip=True)), _FIRST)
    texts = {f"{number}": str(record["text"]) for number, (record, _) in enumerate(rows)}
    chosen = [texts[number] for number in keyed_order(seed_key(config.seed), "lengths", list(texts))[:_TEXTS]]
    chosen = [text[: config.attack.max_characters] for text in chosen]
    attacks = {name: get_attack(name) for name in _PREFERRED if name in config.attack.names}
    moments = any(attack.needs_moments for attack in attacks.values())
    scores = score_texts(base, chosen, moments=moments)
    lengths = [len(text) for text in chosen]
    correlations = {}
    for name, attack in attacks.items():
        assert not isinstance(attack, JointAttack)
        values = [
            attack.statistic(text, mine, _nothing(mine) if isinstance(attack, LikelihoodRatio) else None)
            for text, mine in zip(chosen, scores, strict=True)
        ]
        varies = len(set(lengths)) > 1 and len(set(values)) > 1
        correlations[name] = float(stats.spearmanr(values, lengths).statistic) if varies else 0.0
    return correlations


def least_by_length(correlations: Mapping[str, float]) -> str:
    """Return the first attack that length does not drown, else the one that it moves least."""
    unmoved = (name for name, correlation in correlations.items() if abs(correlation) < LENGTH_DROWNS)
    return next(unmoved, min(correlations, key=lambda name: abs(correlations[name])))


def form_facts(config: PlantConfig, data: RunData) -> FormFacts | None:
    """Return how easily text alone tells canary rows from real ones, whatever the coins; None without canary users.

    Args:
        data: users and set-asides.
    """
    if not data.canaries:
        return None
    key, corpus = seed_key(config.seed), data.corpus.store
    rows = [(user, row) for user in sorted(data.canaries) for row in data.ledger.parts[user][Part.TRAIN]]
    by_id = {data.store.id(row): (user, data.store.text(row)) for user, row in rows}
    canary_rows = [by_id[id_] for id_ in keyed_order(key, "form", list(by_id))[:_ROWS]]
    # Of all rows, and not of a sample of users: most rows of a training set are heavy users'.
    dice = np.random.default_rng(config.seed)
    real = [corpus.text(int(row)) for row in dice.permutation(len(corpus))[:_ROWS]]
    area = text_separation(canary_rows, real, seed=config.seed)
    return FormFacts(
        canary_rows=len(canary_rows),
        real_rows=len(real),
        auroc=None if area is None else round(area, 3),
        kinds=sorted({canary.kind.value for canary in data.canaries.values()}),
    )


def _nothing(scores: TokenScores) -> TokenScores:
    return TokenScores(np.zeros_like(scores.logprobs))
