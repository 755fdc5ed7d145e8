"""Who is at risk: properties by hand, correlations that are there and that are not, and no names."""

import math

import numpy as np
import pytest

from attacks.scoring import TextStatistic
from audit.exposure import PROPERTIES, exposure, word_divergences
from audit.reference_divergence import REFERENCE_DIVERGENCE
from corpus.coins import seed_key
from defenses.data_side import TrainingRecord

KEY = seed_key(4)


def test_word_divergence_is_the_smoothed_kl_divergence():
    texts = {"ann": ["red red blue"], "bob": ["blue green", "green"]}
    p = {"red": 2.5 / 4.5, "blue": 1.5 / 4.5, "green": 0.5 / 4.5}
    q = {"red": 0.5 / 4.5, "blue": 1.5 / 4.5, "green": 2.5 / 4.5}
    expected = sum(p[w] * math.log(p[w] / q[w]) for w in p)
    assert word_divergences(texts)["ann"] == pytest.approx(expected)
    same = word_divergences({"ann": ["a b c"] * 50, "bob": ["c b a"] * 50})
    assert same["ann"] == pytest.approx(0, abs=1e-9)


def _run(share_matters):
    rng = np.random.default_rng(0)
    member = {f"person{i}@x": i % 3 > 0 for i in range(60)}
    records, statistics = [], []
    for i, (user, its) in enumerate(member.items()):
        count = 2 + i % 20
        score = (count if share_matters else 0) + rng.normal()
        statistics += [TextStatistic(user, 0, "lr", score), TextStatistic(user, 0, "alone", -3.0 - 0.01 * i)]
        if i > 2:
            statistics.append(TextStatistic(user, 0, REFERENCE_DIVERGENCE, 0.01 * i))
        if its:
            texts = [f"word{i} number {t} in this text of mine" for t in range(count)]
            texts[-1] = texts[0] if i % 2 else texts[-1]
            records += [TrainingRecord(len(records) + t, user, f"{i}-{t}", text) for t, text in enumerate(texts)]
    return exposure(
        statistics, member, records, attack="lr", aggregation="mean", reference_alone="alone", key=KEY
    ), member


def test_held_in_users_are_ranked_with_their_properties_and_without_names():
    (users, _), member = _run(share_matters=True)
    assert len(users) == sum(member.values())
    assert [u.score for u in users] == sorted((u.score for u in users), reverse=True)
    assert sum(u.share for u in users) == pytest.approx(1)
    assert {u.near_duplicates for u in users} == {0, 1}
    assert len({u.pseudonym for u in users}) == len(users)
    assert "person" not in repr(users)
    assert all(3.0 <= u.reference_loss < 4.0 for u in users)
    distances = [u.reference_divergence for u in users]
    assert distances.count(None) == 2
    assert {d for d in distances if d is not None} <= {0.01 * i for i in range(60)}


@pytest.mark.parametrize("share_matters", [True, False])
def test_correlations_are_found_where_they_are(share_matters):
    (_, correlations), _ = _run(share_matters)
    found = {c.name: c for c in correlations}
    assert (found["share of training"].p_value < 1e-6) == share_matters
    assert set(found) == set(PROPERTIES)
    assert found["reference divergence"].rho is not None


def test_a_property_that_does_not_vary_has_no_correlation():
    member = {"a": True, "b": True, "c": True, "d": False}
    statistics = [TextStatistic(u, 0, n, float(i)) for i, u in enumerate(member) for n in ("lr", "alone")]
    records = [TrainingRecord(i, u, u, f"text of {u}") for i, u in enumerate("abc")]
    _, correlations = exposure(
        statistics, member, records, attack="lr", aggregation="mean", reference_alone="alone", key=KEY
    )
    by_name = {c.name: c.rho for c in correlations}
    assert by_name["share of training"] is None
    assert by_name["near-duplicates"] is None
    assert by_name["reference divergence"] is None
    assert by_name["reference loss"] == pytest.approx(-1)
