"""Set-asides of all users at once equal those of one user after the other; nothing but ids and seed decides them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heldin.base.coins import keyed_digest, keyed_digests, seed_key
from heldin.corpus import row_parts as module
from heldin.corpus.row_parts import RowParts, saved_parts, set_asides
from heldin.corpus.split import Part
from tests.oracles.set_aside import naive_set_aside
from tests.refusals import raised_apart, refused


class Toy:
    """Users of these numbers of records, from a row on; ids do not follow the rows."""

    def __init__(self, counts, first=0):
        self._rows, self._first = {}, first
        for number, count in enumerate(counts):
            self._rows[f"u{number}"] = range(first, first + count)
            first += count
        self.users = list(self._rows)

    def rows(self, user):
        return self._rows[user]

    def ids_at(self, rows):
        return [f"{(row - self._first) * 7919 % 10007}" for row in rows]


def _sides(attacker=0.1, evaluation=0.1, seed=0):
    return {"attacker_fraction": attacker, "evaluation_fraction": evaluation, "seed": seed}


@settings(max_examples=150, deadline=None)
@given(
    counts=st.lists(st.integers(4, 60), min_size=1, max_size=12),
    attacker=st.floats(0.01, 0.9),
    evaluation=st.floats(0.01, 0.9),
    seed=st.integers(0, 2**31),
    batch=st.sampled_from([1, 37, 2**18]),
)
def test_they_equal_those_of_one_user_after_the_other(counts, attacker, evaluation, seed, batch):
    store, options = Toy(counts, first=100), _sides(attacker, evaluation, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS_A_BATCH", batch)
        parts, done = set_asides(store, store.users, **options, advance=(seen := []).append), sum(counts)
    assert sum(seen) == done
    for user in store.users:
        rows = store.rows(user)
        assert parts[user] == naive_set_aside(dict(zip(rows, store.ids_at(rows), strict=True)), **options)
        assert all(parts[user].values())
        assert sorted(row for its in parts[user].values() for row in its) == list(rows)
    assert parts == RowParts.of({user: parts[user] for user in store.users})


@pytest.mark.parametrize(
    ("count", "sizes"), [(4, (1, 1, 1, 1)), (20, (16, 2, 1, 1)), (50, (40, 5, 3, 2)), (200, (160, 20, 10, 10))]
)
def test_the_parts_have_the_papers_sizes(count, sizes):
    parts = set_asides(Toy([count]), ["u0"], **_sides())
    assert tuple(len(parts["u0"][p]) for p in (Part.TRAIN, Part.ATTACKER, Part.VALIDATION, Part.TEST)) == sizes
    assert tuple(int(parts.sizes(p)[0]) for p in (Part.TRAIN, Part.ATTACKER, Part.VALIDATION, Part.TEST)) == sizes


def test_what_is_set_aside_depends_on_ids_and_seed_alone():
    here, there = Toy([9, 50]), Toy([50, 9], first=1000)
    there._rows = {"u1": there._rows["u0"], "u0": there._rows["u1"]}
    there.ids_at = lambda rows: [here.ids_at([row - 1000 + 9])[0] for row in rows]
    parts, same = (set_asides(store, ["u1"], **_sides(seed=1)) for store in (here, there))
    assert {row + 1000 - 9 for row in parts["u1"][Part.ATTACKER]} == set(same["u1"][Part.ATTACKER])
    other = set_asides(here, ["u1"], **_sides(seed=2))
    assert set(parts["u1"][Part.ATTACKER]) != set(other["u1"][Part.ATTACKER])


def test_too_few_records_to_split():
    with refused(by=set_asides, naming=("3", "4")):
        set_asides(Toy([5, 3]), ["u0", "u1"], **_sides())


def test_digests_of_many_are_those_of_each():
    names = ["", "a", "\u00e9\u4e2d", "x" * 500]
    together = keyed_digests(seed_key(3), "set aside", names)
    assert together == b"".join(keyed_digest(seed_key(3), "set aside", name) for name in names)


def test_rows_of_parts_of_some_users_and_what_each_row_is_for():
    parts = set_asides(Toy([5, 8, 6]), ["u0", "u1", "u2"], **_sides())
    assert parts.rows_of(Part.TRAIN).tolist() == [row for user in parts for row in parts[user][Part.TRAIN]]
    assert parts.rows_of(Part.TEST, ["u2", "u0"]).tolist() == [*parts["u0"][Part.TEST], *parts["u2"][Part.TEST]]
    assert parts.rows_of(Part.TEST, []).tolist() == []
    use = parts.uses(21)
    assert use[19:].tolist() == [0, 0]
    assert {int(use[row]) for row in parts["u1"][Part.VALIDATION]} == {1 + list(Part).index(Part.VALIDATION)}
    assert (parts.uses(3) == use[:3]).all()
    more = parts.joined(RowParts.of({"e": dict.fromkeys(Part, (1, 2))}))
    assert more["e"] == dict.fromkeys(Part, (1, 2))
    assert more["u1"] == parts["u1"]
    assert parts.joined(RowParts.of({})) is parts
    assert len(RowParts.of({})) == 0


def test_they_are_saved_whole_and_a_change_is_found(tmp_path):
    parts = set_asides(Toy([5, 8]), ["u0", "u1"], **_sides())
    with refused(by="require_whole", naming="there") as missing:
        saved_parts(tmp_path / "there")
    parts.save(tmp_path / "there", origin="this")
    of, again = saved_parts(tmp_path / "there")
    assert (of, again) == ("this", parts)
    assert isinstance(again.rows, np.memmap)
    changed = np.array(parts.rows)
    changed[[0, 1]] = changed[[1, 0]]
    np.save(tmp_path / "there" / "rows.npy", changed)
    with refused(by="require_whole", naming="there") as altered:
        saved_parts(tmp_path / "there")
    assert raised_apart(missing, altered)
