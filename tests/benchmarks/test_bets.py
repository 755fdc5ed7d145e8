"""The rules of two bets: what a rehearsal must gain, and what shadow models must find on real corpora."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from heldin.attacks.joint import TokenTable
from heldin.bounds.roc import auroc
from tests.oracles.shadow import pooled_variance_ratio

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(scope="module")
def bets():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield SimpleNamespace(
            rehearsed=importlib.import_module("rehearsed"), shadows=importlib.import_module("shadow_evidence")
        )


def results(bets, over_centred, over_default, sets=8, spread=0.004):
    """Every statistic at 0.7 but for ``rehearsed``, whose gains are these, and a little off from set to set."""
    rows = []
    for corpus in bets.rehearsed.CORPORA:
        for coins in range(sets):
            off = spread * (1 if coins % 2 else -1)
            areas = dict.fromkeys((*bets.rehearsed.BESIDE, bets.rehearsed.LEARNED, bets.rehearsed.BLIND), 0.7)
            areas["centred"] -= over_centred + off
            areas["likelihood-ratio"] -= over_default + off
            of = {name: {"auroc": area, "tpr": 0.2} for name, area in areas.items()}
            rows.append({"corpus": corpus, "coins": coins, "fresh": of, "training": of})
    return rows


@pytest.mark.parametrize(
    ("over_centred", "over_default", "kept"),
    [(0.021, 0.01, True), (0.019, 0.01, False), (0.03, 0.0005, False), (0.03, -0.01, False)],
)
def test_a_rehearsal_is_kept_if_it_gains_enough_over_both(bets, over_centred, over_default, kept):
    made = results(bets, over_centred, over_default)
    assert bets.rehearsed.kept_by_the_rule(made) is kept
    assert bets.rehearsed.table(made).endswith(f"By the rule: {'kept' if kept else 'not kept'}.")
    assert bets.rehearsed.kept_by_the_rule(made[:-1]) is None


def test_the_pooled_limit_is_welchs_over_corpora(bets):
    rng = np.random.default_rng(0)
    by_corpus = [rng.normal(0.02, 0.01, 8), rng.normal(0.0, 0.03, 8), rng.normal(0.05, 0.002, 6)]
    its = bets.rehearsed.pooled_gain(by_corpus)
    assert its.mean == pytest.approx(np.mean([np.mean(values) for values in by_corpus]))
    # Two of them are Welch's test of a difference: the second turned round, and twice the mean.
    two = bets.rehearsed.pooled_gain(by_corpus[:2])
    limit = stats.ttest_ind(by_corpus[0], -by_corpus[1], equal_var=False).confidence_interval(0.90).low / 2
    assert two.lower == pytest.approx(limit)
    assert bets.rehearsed.pooled_gain([[0.1], [0.2, 0.3]]).lower == -np.inf


def world(seed, gap, users=240):
    """Tokens of users of whom those who are in have higher ratios where the reference finds a token hard."""
    rng = np.random.default_rng(seed)
    member = rng.random(users) < 0.5
    user_of = np.repeat(np.arange(users), rng.integers(1, 6, users))
    text_of = np.repeat(np.arange(user_of.size), rng.integers(5, 40, user_of.size))
    reference = -rng.gamma(2, 1.5, text_of.size)
    ratios = rng.normal(0, 1, text_of.size) + gap * member[user_of[text_of]] * (reference < -4)
    ids, ranks = (rng.integers(0, n, text_of.size).astype(np.int32) for n in (200, 5))
    return TokenTable(ratios, reference, text_of, user_of, ids, ranks), member


@pytest.mark.slow
def test_what_is_learned_on_a_rehearsal_is_applied_to_other_people_and_learns_nothing_from_nothing(bets):
    aggregator = bets.rehearsed.learned(*world(0, 0.3))
    tokens, member = world(1, 0.3)
    found = aggregator.scores(tokens)
    plain = np.array([tokens.ratios[tokens.owner_of == user].mean() for user in range(tokens.users)])
    areas = [auroc(values[member], values[~member]) for values in (found, plain)]
    assert areas[0] > areas[1] + 0.03
    tokens, member = world(2, 0.0)
    noise = auroc(*(aggregator.scores(tokens)[side] for side in (member, ~member)))
    assert abs(noise - 0.5) < 5 / np.sqrt(12 * 100)  # five standard deviations of an AUROC of 100 by 100 and more


def trainings(seed, pairs=5, users=300, freedom=4):
    """Scores under pairs of models of which the second has in whom the first has out; users vary unlike each other."""
    rng = np.random.default_rng(seed)
    middle, noise = rng.normal(0, 5, users), np.sqrt(freedom / rng.chisquare(freedom, users))
    found = []
    for _ in range(pairs):
        member = rng.random(users) < 0.5
        for side in (member, ~member):
            found.append((side, middle + 2.0 * side + noise * rng.normal(size=users)))
    return found


def test_each_training_is_audited_by_models_of_other_pairs(bets):
    made = trainings(0)
    found = bets.shadows.audits(made)
    assert len(found) == 10
    assert set(found[0]) == {
        "no shadow models",
        "own variances, 2",
        "own variances, 4",
        "pooled variance, 4",
        "own variances, 8",
        "pooled variance, 8",
    }
    rates = {way: np.mean([its[way]["tpr"] for its in found]) for way in found[0]}
    assert rates["own variances, 8"] > rates["pooled variance, 8"] > rates["no shadow models"] + 0.1
    # A training's twin has everybody's coin turned: it would give them away, and takes no part.
    (member, twin), rest = made[1], made[2:]
    assert bets.shadows.audits([made[0], (member, twin + 9.0 * member), *rest])[0] == found[0]


@pytest.mark.parametrize("models", [4, 8])
def test_the_pooled_variance_is_the_slow_one(bets, models):
    made = trainings(1, users=40)
    target = made[0][1]
    included, shadows = (np.array([its[part] for its in made[2 : 2 + models]]) for part in (0, 1))
    found = bets.shadows.pooled_variance_ratio(target, shadows, included)
    assert found == pytest.approx(pooled_variance_ratio(target, shadows, included), rel=1e-9)
