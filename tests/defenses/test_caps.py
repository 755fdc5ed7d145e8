"""Greedy caps against a slow twin, whatever the order of the input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heldin.base.coins import keyed_order, seed_key
from heldin.defenses.texts.caps import kept_under_caps, slot_order
from tests.refusals import refused

SLOTS = st.lists(st.tuples(st.integers(0, 4), st.sets(st.integers(0, 6), max_size=4)), max_size=40)
CAPS = st.tuples(st.integers(1, 4), st.integers(1, 4))


def arrays(slots):
    named = [sorted(entities) for _, entities in slots]
    return (
        np.array([author for author, _ in slots], dtype=np.int64),
        np.cumsum([0, *map(len, named)]).astype(np.int64),
        np.array([entity for some in named for entity in some], dtype=np.int64),
    )


def slowly(order, slots, group_size, entity_cap):
    """The rule as docs/theory.md states it, by counting what was kept so far at every slot."""
    kept = []
    for i in order:
        author, entities = slots[i]
        room = sum(slots[j][0] == author for j in kept) < group_size
        if room and all(sum(e in slots[j][1] for j in kept) < entity_cap for e in entities):
            kept.append(i)
    return set(kept)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(SLOTS, CAPS, st.randoms(use_true_random=False))
def test_caps_are_those_of_the_slow_twin_and_hold(slots, caps, random):
    group_size, entity_cap = caps
    order = list(range(len(slots)))
    random.shuffle(order)
    kept = kept_under_caps(
        np.array(order, dtype=np.int64), *arrays(slots), group_size=group_size, entity_cap=entity_cap
    )
    assert set(np.flatnonzero(kept).tolist()) == slowly(order, slots, group_size, entity_cap)
    stays = [slots[i] for i in np.flatnonzero(kept)]
    assert all(sum(a == author for a, _ in stays) <= group_size for author in range(5))
    assert all(sum(e in named for _, named in stays) <= entity_cap for e in range(7))


def test_the_order_of_slots_does_not_depend_on_the_order_of_the_input():
    ids = [f"record {i}" for i in range(500)]
    key = seed_key(3)
    order = [ids[i] for i in slot_order(key, ids, len(ids))]
    assert order == keyed_order(key, "caps", ids)
    backwards = ids[::-1]
    assert [backwards[i] for i in slot_order(key, backwards, len(ids))] == order
    assert [ids[i] for i in slot_order(seed_key(4), ids, len(ids))] != order


@pytest.mark.parametrize(("group_size", "entity_cap", "naming"), [(0, 1, "group size is 0"), (1, 0, "entity cap is 0")])
def test_caps_below_one_are_refused(group_size, entity_cap, naming):
    with refused(by=kept_under_caps, naming=naming):
        kept_under_caps(np.arange(1), *arrays([(0, {1})]), group_size=group_size, entity_cap=entity_cap)


def test_a_corpus_without_records_or_entities():
    assert kept_under_caps(np.arange(0), *arrays([]), group_size=1, entity_cap=1).tolist() == []
    assert kept_under_caps(np.arange(2), *arrays([(0, set()), (0, set())]), group_size=1, entity_cap=1).sum() == 1
