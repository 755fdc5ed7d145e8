"""Near-duplicates by bands against comparing every pair; what the index forgets."""

import functools
import random

import numpy as np
import pytest

from heldin.defenses.texts import near_duplicates
from heldin.defenses.texts.near_duplicates import PERMUTATIONS, RECALL, first_of_similar, rows_of_a_band


def _texts(count, seed=0, common=0):
    """Sets of shingles, of which some are an earlier one with some of its shingles changed; ``common`` stand in all."""
    dice = random.Random(seed)
    made = []
    for i in range(count):
        words = [str(dice.randrange(10**6)) for _ in range(30)]
        if i and dice.random() < 0.4:
            words = list(dice.choice(made))
            for _ in range(dice.choice([0, 1, 2, 4, 8, 16])):
                words[dice.randrange(30)] = str(dice.randrange(10**6))
        made.append(words)
    return [words + [f"common {i}" for i in range(common)] for words in made]


@functools.cache
def _sketched(common=0):
    """250 texts, and the sketch of each."""
    texts = _texts(250, common=common)
    return texts, [near_duplicates.sketches_of([text])[0] for text in texts]


def _share(one, other):
    """The estimate itself: how much of two sketches is equal."""
    return np.count_nonzero(one == other) / PERMUTATIONS


def _slow(sketches, threshold):
    """Every text against every earlier one that stays, by the estimate itself."""
    kept = []
    for i, own in enumerate(sketches):
        if not any(_share(own, sketches[k]) >= threshold for k in kept):
            kept.append(i)
    return kept


@pytest.mark.parametrize(("threshold", "common"), [(0.5, 0), (0.8, 0), (0.95, 0), (1.0, 0), (0.8, 30), (0.95, 30)])
@pytest.mark.parametrize("direct", [1_000, 20])
def test_those_stay_that_are_like_nothing_earlier(monkeypatch, threshold, direct, common):
    texts, sketches = _sketched(common)
    monkeypatch.setattr(near_duplicates, "DIRECT", direct)
    monkeypatch.setattr(near_duplicates, "CHUNK", 64)
    stays = np.flatnonzero(first_of_similar(iter(texts), threshold)).tolist()
    assert stays == _slow(sketches, threshold)
    assert 100 < len(stays) < 250


@pytest.mark.parametrize("fixed", [0, 1, 80, 250])
@pytest.mark.parametrize("direct", [1_000, 20])
def test_the_first_texts_alone_may_remove_and_all_stay(monkeypatch, fixed, direct):
    texts, sketches = _sketched()
    monkeypatch.setattr(near_duplicates, "DIRECT", direct)
    monkeypatch.setattr(near_duplicates, "CHUNK", 64)
    stays = first_of_similar(iter(texts), 0.8, fixed)
    # Each of the others against the first ones, by itself.
    near = np.array([any(_share(own, first) >= 0.8 for first in sketches[:fixed]) for own in sketches[fixed:]], bool)
    assert stays.tolist() == [True] * fixed + (~near).tolist()
    assert fixed != 80 or 20 < near.sum() < 150


def test_without_two_texts_that_share_a_band_all_stay(monkeypatch):
    monkeypatch.setattr(near_duplicates, "DIRECT", 3)
    assert first_of_similar([[f"{i} {j}" for j in range(9)] for i in range(40)], 0.9).all()
    assert first_of_similar([], 0.9).tolist() == []
    assert first_of_similar([["a"]] * 50, 0.9).tolist() == [True] + [False] * 49


@pytest.mark.parametrize("threshold", [0.01, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.99, 1.0])
def test_bands_find_pairs_at_the_threshold(threshold):
    rows = rows_of_a_band(threshold)
    bands = PERMUTATIONS // rows
    assert rows == 1 or 1 - (1 - threshold**rows) ** bands >= RECALL
    wider = rows + 1
    assert wider > PERMUTATIONS or 1 - (1 - threshold**wider) ** (PERMUTATIONS // wider) < RECALL
