"""Who is at risk: properties by hand, correlations that are there and that are not, single users in one file only."""

import math
import stat
from collections import Counter
from dataclasses import asdict

import numpy as np
import pytest

from heldin.attacks.protocol import REFERENCE_ALONE, REFERENCE_DIVERGENCE, TextStatistic
from heldin.audit.coarse import LEAST_IN_GROUP
from heldin.audit.exposed_users import (
    PROPERTIES,
    SMOOTHING,
    correlations,
    exposed_users,
    exposure_groups,
    read_people,
    word_divergences,
    write_people,
)
from heldin.audit.scored_users import scored_users
from heldin.corpus.document import Document
from heldin.defenses.data_side.contract import TrainingRecord
from heldin.jobs.user_scores import people_table
from tests.refusals import names, refused


def _word_divergences_one_by_one(texts):
    """The slow twin: every word of everybody, for every user."""
    counts = {user: Counter(w for text in its for w in text.lower().split()) for user, its in texts.items()}
    everybody = sum(counts.values(), Counter())
    total, size = sum(everybody.values()), len(everybody)
    found = {}
    for user, own in counts.items():
        p_total, q_total = sum(own.values()) + SMOOTHING * size, total - sum(own.values()) + SMOOTHING * size
        p = {w: (own[w] + SMOOTHING) / p_total for w in everybody}
        q = {w: (everybody[w] - own[w] + SMOOTHING) / q_total for w in everybody}
        found[user] = sum(p[w] * math.log(p[w] / q[w]) for w in everybody)
    return found


def test_word_divergence_is_the_smoothed_kl_divergence():
    texts = {"ann": ["red red blue"], "bob": ["blue green", "green"]}
    p = {"red": 2.5 / 4.5, "blue": 1.5 / 4.5, "green": 0.5 / 4.5}
    q = {"red": 0.5 / 4.5, "blue": 1.5 / 4.5, "green": 2.5 / 4.5}
    expected = sum(p[w] * math.log(p[w] / q[w]) for w in p)
    assert word_divergences(texts)["ann"] == pytest.approx(expected)
    same = word_divergences({"ann": ["a b c"] * 50, "bob": ["c b a"] * 50})
    assert same["ann"] == pytest.approx(0, abs=1e-9)


def test_word_divergences_are_those_of_the_slow_twin():
    rng = np.random.default_rng(0)
    texts = {f"u{i}": [" ".join(f"w{n}" for n in rng.zipf(1.5, 1 + 5 * i) if n < 500) or "w1"] for i in range(40)}
    slow, fast = _word_divergences_one_by_one(texts), word_divergences(texts)
    assert fast == pytest.approx(slow, rel=1e-9, abs=1e-12)


def test_word_divergences_cost_the_reading_of_the_texts_and_not_users_times_words():
    """20,000 users of one word each, 20,000 words: users x words would be 4e8 logarithms, minutes and not moments."""
    texts = {f"u{i}": [f"word{i}"] for i in range(20_000)}
    found = word_divergences(texts)
    assert len(set(found.values())) == 1


def _run(share_matters):
    rng = np.random.default_rng(0)
    member = {f"person{i}@x": i % 3 > 0 for i in range(60)}
    records, statistics = [], []
    for i, (user, its) in enumerate(member.items()):
        count = 2 + i % 20
        score = (count if share_matters else 0) + rng.normal()
        statistics += [TextStatistic(user, 0, "lr", score), TextStatistic(user, 0, REFERENCE_ALONE, -3.0 - 0.01 * i)]
        if i > 2:
            statistics.append(TextStatistic(user, 0, REFERENCE_DIVERGENCE, 0.01 * i))
        if its:
            texts = [f"word{i} number {t} in this text of mine" for t in range(count)]
            texts[-1] = texts[0] if i % 2 else texts[-1]
            records += [
                TrainingRecord(len(records) + t, user, f"{i}-{t}", Document.of(text)) for t, text in enumerate(texts)
            ]
    return exposed_users(scored_users(statistics, member), records, attack="lr", aggregation="mean"), member


def test_held_in_users_are_ranked_with_their_properties():
    users, member = _run(share_matters=True)
    assert {u.user for u in users} == {user for user, its in member.items() if its}
    assert [u.score for u in users] == sorted((u.score for u in users), reverse=True)
    assert sum(u.share for u in users) == pytest.approx(1)
    assert {u.near_duplicates for u in users} == {0, 1}
    assert all(3.0 <= u.reference_loss < 4.0 for u in users)
    distances = [u.reference_divergence for u in users]
    assert distances.count(None) == 2
    assert {d for d in distances if d is not None} <= {0.01 * i for i in range(60)}


@pytest.mark.parametrize("share_matters", [True, False])
def test_correlations_are_found_where_they_are(share_matters):
    found = {c.name: c for c in correlations(_run(share_matters)[0])}
    assert (found[PROPERTIES["share"]].p_value < 1e-6) == share_matters
    assert set(found) == set(PROPERTIES.values())
    assert found["reference divergence"].rho is not None


def test_groups_have_ten_users_or_more_and_no_name_and_hold_the_means():
    users, _ = _run(share_matters=True)
    groups = exposure_groups(users)
    assert [g.users for g in groups] == [10, 10, 10, 10]
    assert "person" not in repr(groups)
    assert groups[0].share == pytest.approx(np.mean([u.share for u in users[:10]]), rel=0.05)
    assert groups[0].above > groups[-1].above
    few = [asdict(u) | {"reference_divergence": None if i < 3 else 1.0} for i, u in enumerate(users[:12])]
    assert exposure_groups([type(users[0])(**u) for u in few])[0].reference_divergence is None  # nine have one
    assert exposure_groups(users[: LEAST_IN_GROUP - 1]) == []
    assert len(exposure_groups(users * 5)) == 5


def test_too_few_users_have_no_correlation():
    users, _ = _run(share_matters=True)
    assert {c.rho for c in correlations(users[: LEAST_IN_GROUP - 1])} == {None}
    same = [type(u)(**{**asdict(u), "share": 0.5}) for u in users]
    assert {c.name: c.rho for c in correlations(same)}[PROPERTIES["share"]] is None


def test_single_users_stand_in_a_file_that_its_owner_alone_can_read(tmp_path):
    users, _ = _run(share_matters=True)
    write_people(users, tmp_path / "people.parquet")
    assert stat.S_IMODE((tmp_path / "people.parquet").stat().st_mode) == 0o600
    assert read_people(tmp_path / "people.parquet") == users
    printed = people_table(users, 2)
    assert users[0].user in printed
    assert users[2].user not in printed
    assert names(printed.splitlines()[-1], "2", "40")
    (tmp_path / "people.parquet").write_bytes(b"x")
    with refused(by=read_people, naming="people.parquet"):
        read_people(tmp_path / "people.parquet")
