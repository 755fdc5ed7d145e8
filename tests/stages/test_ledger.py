"""The ledger: disjoint sides, owner-only files, the same after a restart, refused for another corpus or split."""

import contextlib
import json
import stat
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from heldin.base.coins import fair_coin, new_key
from heldin.base.errors import InputError
from heldin.corpus.build import build_store
from heldin.corpus.sources.json_rows import Json
from heldin.corpus.sources.rows import Columns
from heldin.corpus.split import Part, Role, SplitRule
from heldin.stages.run_config import SplitConfig
from heldin.stages.sides.layout import Layout, parts_of, pool_of_users
from heldin.stages.sides.ledger import Keys, draw_ledger, ledger_of_run, load_ledger, save_ledger
from tests.refusals import refused


def _store(folder, sizes):
    path = folder / "m.jsonl"
    rows = [
        {"user": f"u{u}", "text": f"{u} writes {i}", "id": f"{u}-{i}"} for u, n in enumerate(sizes) for i in range(n)
    ]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return build_store(Json(path, Columns(id="id")), folder)


def _layout(store, split, seed):
    users = tuple(store.users)
    parts = parts_of(store, users, {}, split, seed=seed)
    return Layout(store.fingerprint, users, {}, parts, pool_of_users(users, split, seed=seed))


def _draw(store, *, keys=None, seed=0, **changes):
    split = SplitConfig(**changes)
    return draw_ledger(_layout(store, split, seed), split, seed=seed, keys=keys or Keys(new_key(), new_key()))


def _of_run(folder, store, *, seed=0, **changes):
    split = SplitConfig(**changes)
    return ledger_of_run(folder, _layout(store, split, seed), split, seed=seed, kept=load_ledger(folder))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(4, 30), min_size=8, max_size=25),
    assignment=st.sampled_from(SplitRule),
    pool=st.integers(4, 8) | st.none(),
    fraction=st.floats(0.05, 0.6),
    seed=st.integers(0, 99),
)
def test_no_record_of_a_held_out_user_and_no_set_aside_record_is_ever_trained_on(
    sizes, assignment, pool, fraction, seed, tmp_path_factory
):
    store = _store(tmp_path_factory.mktemp("ledger"), sizes)
    key = bytes([seed]) * 32
    with contextlib.suppress(InputError):  # a small pool's coins may all fall on one side
        options = {"assignment": assignment, "audit_pool": pool, "attacker_fraction": fraction}
        ledger = _draw(store, seed=seed, keys=Keys(key, key), **options)
    assume("ledger" in locals())
    trained = ledger.training_rows()
    trained_ids = {store.id(row) for row in trained}
    assert len(trained_ids) == len(trained)
    forbidden = {
        store.id(row)
        for user, parts in ledger.parts.items()
        for part, rows in parts.items()
        for row in rows
        if part is not Part.TRAIN or ledger.roles[user] is Role.HELD_OUT
    }
    assert not trained_ids & forbidden
    assert len(trained_ids | forbidden) == len(store)
    attacked = {row for user in ledger.scored_users() for row in ledger.parts[user][Part.ATTACKER]}
    assert not attacked & set(trained)
    assert {store.record(row).user for row in trained} == {u for u, r in ledger.roles.items() if r is not Role.HELD_OUT}


def test_set_asides_do_not_depend_on_the_coins(tmp_path):
    store = _store(tmp_path, [20] * 10)
    one, two = _draw(store, keys=Keys(b"1" * 32, b"1" * 32)), _draw(store, keys=Keys(b"2" * 32, b"2" * 32))
    assert one.parts == two.parts
    assert one.roles != two.roles


def test_every_draw_has_its_own_key_and_only_commitments_are_public(tmp_path):
    store = _store(tmp_path, [10] * 10)
    one, two = _draw(store), _draw(store)
    assert {len(its) for its in (one.key, one.coins_key)} == {32}
    assert len({one.key, one.coins_key, two.key, two.coins_key}) == 4
    assert one.key_commitment() != two.key_commitment()
    for secret in (one.key, one.coins_key):
        assert secret.hex() not in one.key_commitment() + one.commitment()
    assert one.roles["u3"] is (Role.HELD_IN if fair_coin(one.coins_key, "membership", "u3") else Role.HELD_OUT)


def test_the_ledger_survives_a_restart_in_owner_only_files(tmp_path):
    store = _store(tmp_path, [10] * 10)
    folder = tmp_path / "ledger"
    drawn = _of_run(folder, store, audit_pool=6)
    assert load_ledger(folder) == drawn
    assert _of_run(folder, store, audit_pool=6) == drawn
    assert _of_run(tmp_path / "other", store, audit_pool=6).key != drawn.key
    split = SplitConfig(audit_pool=6)
    with refused(by=ledger_of_run, naming="ledger"):
        ledger_of_run(folder, _layout(store, split, 0), split, seed=0, kept=None)
    assert load_ledger(folder) == drawn
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in folder.rglob("*")} == {0o600, 0o700}
    assert {p.name for p in folder.rglob("*") if p.stat().st_mode & 0o100} == {"rows"}


def test_a_ledger_that_was_not_finished_is_none(tmp_path):
    save_ledger(_draw(_store(tmp_path, [10] * 10)), tmp_path / "ledger")
    (tmp_path / "ledger" / "ledger.json").unlink()
    assert load_ledger(tmp_path / "ledger") is None


@pytest.mark.parametrize("name", ["ledger.json", "users.parquet"])
def test_a_damaged_ledger_is_one_line(tmp_path, name):
    save_ledger(_draw(_store(tmp_path, [10] * 10)), tmp_path / "ledger")
    path = tmp_path / "ledger" / name
    path.write_bytes(path.read_bytes()[:20])
    with refused(naming=str(tmp_path / "ledger")):
        load_ledger(tmp_path / "ledger")


def test_a_run_folder_of_another_corpus_split_or_membership_is_refused(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = _store(tmp_path / "one", [10] * 10), _store(tmp_path / "two", [11] * 10)
    folder = tmp_path / "ledger"
    kept = _of_run(folder, one)
    with refused(by=ledger_of_run, naming=("ledger", "corpus", "parts")):
        _of_run(folder, two)
    with refused(by=ledger_of_run, naming=("ledger", "split", "parts")):
        _of_run(folder, one, seed=1)
    flipped = {u: Role.HELD_OUT if r is Role.HELD_IN else Role.HELD_IN for u, r in kept.roles.items()}
    save_ledger(replace(kept, roles=flipped), folder)
    with refused(by=ledger_of_run, naming="roles"):
        _of_run(folder, one)
