"""Units and writers as arrays: the same as lists of objects, and ids that occur twice are found."""

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest

from heldin.finetune import sampled_units
from heldin.finetune.sampled_units import Copies, SampledUnit, Units, Writers, require_unique
from tests.refusals import refused

USERS = ["cy", "ann", "cy", "bob", "ann", "cy"]


def test_units_of_writers_hold_each_users_rows():
    units = Writers.of_names(USERS).units()
    assert list(units) == [SampledUnit("ann", (1, 4)), SampledUnit("bob", (3,)), SampledUnit("cy", (0, 2, 5))]
    assert units[-1] == units[2]
    assert units[:2] == [units[0], units[1]]
    with pytest.raises(IndexError):
        units[3]
    again = Units.of(list(units))
    assert list(again) == list(units)
    assert again.digest() == units.digest()


def test_users_without_a_record_are_no_units():
    writers = Writers(["ann", "bob", "cy"], np.array([2, 0, 2], dtype=np.int32))
    assert [unit.name for unit in writers.units()] == ["ann", "cy"]
    assert list(writers) == ["cy", "ann", "cy"]
    assert writers[1:] == ["ann", "cy"]
    assert Writers.of_names(writers) is writers


def test_the_hash_changes_with_names_and_rows():
    ends = np.array([1, 3])
    units = Units(["a", "b"], np.array([0, 1, 2]), ends)
    others = [
        Units(["a", "c"], units.rows, ends),
        Units(["b", "a"], units.rows, ends),
        Units(["a", "b"], np.array([0, 2, 1]), ends),
        Units(["a", "b"], units.rows, np.array([2, 3])),
    ]
    assert len({its.digest() for its in (units, *others)}) == 5


def test_copies_have_names_of_their_own():
    names = Copies(["x", "y"], np.array([1, 1, 0]), np.array([0, 1, 0]))
    assert list(names) == ["y copy 0", "y copy 1", "x copy 0"]
    assert names[1:] == ["y copy 1", "x copy 0"]


@pytest.mark.parametrize("batch", [2, 2**16])
def test_an_id_that_occurs_twice_is_found_and_equal_hashes_of_others_are_no_alarm(monkeypatch, batch):
    monkeypatch.setattr(sampled_units, "NAMES_A_BATCH", batch)
    names = [f"record {i}" for i in range(1000)]
    require_unique(names)
    require_unique([])
    with refused(by=require_unique):
        require_unique([*names, "record 7"])
    one = SimpleNamespace(blake2b=lambda *_, **__: SimpleNamespace(digest=lambda: b"12345678"), sha256=hashlib.sha256)
    monkeypatch.setattr(sampled_units, "hashlib", one)
    require_unique(names[:5])
    with refused(by=require_unique):
        require_unique(["a", "b", "a"])
