"""Set-asides and coins: every record in one part, coins fair and independent, sides disjoint."""

import json

import pytest
from scipy import stats

from heldin.base.coins import fair_coin, keyed_order, new_key, seed_key
from heldin.corpus.build import build_store
from heldin.corpus.sources.json_rows import Json
from heldin.corpus.sources.rows import Columns
from heldin.corpus.split import Role, SplitRule, assign
from heldin.corpus.user_filter import UserFilter, select_users
from heldin.stages.run_config import SplitConfig
from heldin.stages.sides.layout import pool_of_users
from tests.refusals import refused

USERS = [f"user{i}" for i in range(400)]
COIN_ALARM = 1e-6


def _coin_p_values(flip, keys=60):
    """P-values that 60 x 400 coins are fair, and that neighbouring users' coins are independent."""
    flips = [[flip(seed_key(1000 + k), user) for user in USERS] for k in range(keys)]
    ones = sum(map(sum, flips))
    agree = sum(a == b for row in flips for a, b in zip(row[::2], row[1::2], strict=True))
    total = keys * len(USERS)
    return stats.binomtest(ones, total).pvalue, stats.binomtest(agree, total // 2).pvalue


def test_coins_are_fair_and_independent_and_the_test_rejects_others():
    fair, independent = _coin_p_values(lambda key, user: fair_coin(key, "membership", user))
    assert fair > COIN_ALARM
    assert independent > COIN_ALARM
    biased, _ = _coin_p_values(lambda key, user: fair_coin(key, "a", user) or fair_coin(key, "b", user))
    assert biased < COIN_ALARM
    _, paired = _coin_p_values(lambda key, user: fair_coin(key, "membership", str(int(user[4:]) // 2)))
    assert paired < COIN_ALARM


def test_coins_of_two_purposes_or_keys_differ():
    key = new_key()
    flips = [[fair_coin(k, p, u) for u in USERS] for k, p in ((key, "a"), (key, "b"), (new_key(), "a"))]
    assert flips[0] != flips[1]
    assert flips[0] != flips[2]


def test_an_order_does_not_depend_on_the_order_of_asking():
    assert keyed_order(seed_key(0), "x", USERS) == keyed_order(seed_key(0), "x", USERS[::-1])


def test_roles_by_coin_pool_and_exact_half():
    key = new_key()
    everyone = assign(USERS, assignment=SplitRule.COIN, key=key)
    assert {u for u, r in everyone.items() if r is Role.HELD_IN} == {
        u for u in USERS if fair_coin(key, "membership", u)
    }
    some = pool_of_users(USERS, SplitConfig(audit_pool=100), seed=0)
    assert some.names == tuple(keyed_order(seed_key(0), "audit pool", USERS)[:100])
    assert some.entities == {}
    pool = assign(some.names, assignment=SplitRule.COIN, key=key)
    assert pool == {u: everyone[u] for u in some.names}
    half = assign(USERS, assignment=SplitRule.EXACT_HALF, key=key)
    assert sum(r is Role.HELD_IN for r in half.values()) == 200


@pytest.mark.parametrize(
    ("users", "pool", "naming"),
    [
        (USERS[:1], None, ("1", "2")),
        (USERS[:5], 6, ("audit_pool", "6", "5")),
    ],
)
def test_pools_that_cannot_be_audited(users, pool, naming):
    with refused(by="check_pool", naming=naming):
        pool_of_users(users, SplitConfig(audit_pool=pool), seed=0)


def test_coins_all_on_one_side_are_told():
    key = next(
        k for k in map(seed_key, range(100)) if fair_coin(k, "membership", "a") == fair_coin(k, "membership", "b")
    )
    with refused(by="require_both_sides", naming="2"):
        assign(["a", "b"], assignment=SplitRule.COIN, key=key)


def test_selection_counts_whom_it_drops(tmp_path):
    sizes = {"a@x": 5, "b@x": 3, "c@y": 9, "bot@x": 9, "d@x": 7, "e@x": 6}
    path = tmp_path / "m.jsonl"
    rows = [{"user": u, "text": f"{u} {i}", "id": f"{u}{i}"} for u, n in sizes.items() for i in range(n)]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    store = build_store(Json(path, Columns(id="id")), tmp_path)
    rule = UserFilter(include=("*@x",), exclude=("bot@*",), min_records=5)
    chosen = select_users(store, rule, seed=0)
    assert chosen.users == ("a@x", "d@x", "e@x")
    assert (chosen.dropped_by_pattern, chosen.dropped_by_minimum, chosen.dropped_by_sampling) == (2, 1, 0)
    limited = select_users(
        store, UserFilter(include=("*@x",), min_records=1, max_users=2), taken=frozenset({"a@x"}), seed=0
    )
    assert len(limited.users) == 2
    assert "a@x" not in limited.users
    assert limited.dropped_by_sampling == 2
    small = select_users(store, UserFilter(include=("*@x",), min_records=1, max_records=6), seed=0)
    assert small.users == ("a@x", "b@x", "e@x")
    assert small.dropped_by_maximum == 2
    with refused(by=select_users, naming=("min_records", "0", "1")):
        select_users(store, UserFilter(min_records=0), seed=0)


def test_a_fraction_is_audited_by_public_coins_of_the_users_own():
    split = SplitConfig(audit_fraction=0.3)
    pool = pool_of_users(USERS, split, seed=0)
    assert stats.binomtest(len(pool.names), len(USERS), 0.3).pvalue > COIN_ALARM
    # Whoever else there is: one more or fewer moves nobody.
    fewer = pool_of_users(USERS[::2], split, seed=0)
    assert set(fewer.names) == set(pool.names) & set(USERS[::2])
    assert set(pool_of_users(USERS, SplitConfig(audit_fraction=0.5), seed=0).names) > set(pool.names)
    assert pool_of_users(USERS, split, seed=1).names != pool.names
    assert pool_of_users(USERS, SplitConfig(audit_fraction=1.0), seed=0).names == tuple(USERS)
    with refused(by=pool_of_users, naming=("split.audit_fraction", "1e-09", "0")):
        pool_of_users(USERS[:2], SplitConfig(audit_fraction=1e-9), seed=0)
