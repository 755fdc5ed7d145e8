"""Variants that another one beats: what is never said, what always is, and how often it is wrong."""

import dataclasses
import math

import numpy as np
import pytest

from heldin.audit.frontier import Position, dominated


def position(name, auroc, loss, epsilon=math.inf, delta=1.0):
    return Position(name, epsilon, delta, tuple(auroc), tuple(loss), gradients=10.0)


def around(mean, spread, rng, blocks=5):
    return mean + spread * rng.standard_normal(blocks)


def all_alike(rng, blocks):
    """Six variants: blocks move all of them together, as shared coins do, and each has a spread of its own."""
    common = rng.standard_normal(blocks)
    return [position(str(i), common + around(0, 1, rng, blocks), common + around(0, 1, rng, blocks)) for i in range(6)]


def test_a_variant_that_leaks_clearly_more_and_learns_no_more_is_dominated():
    rng = np.random.default_rng(0)
    better = position("better", around(0.5, 0.01, rng), around(4.0, 0.01, rng))
    worse = position("worse", around(0.8, 0.01, rng), around(4.5, 0.01, rng))
    assert dominated([better, worse]) == {"better": [], "worse": ["better"]}
    assert dominated([worse, better]) == {"worse": ["better"], "better": []}


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("a promise of its own", {"epsilon": 8.0, "delta": 1e-5}),
        ("fewer gradients", {"gradients": 5.0}),
        ("a lower loss", {"loss": (3.0,) * 5}),
        ("a promise to single records", {"epsilon_per_record": 8.0, "delta": 1e-5}),
        ("canary users who are found less", {"canaries": -0.1}),
    ],
)
def test_whoever_is_better_in_anything_is_not_dominated(what, changes):
    rng = np.random.default_rng(1)
    better = position("better", around(0.5, 0.01, rng), around(4.0, 0.01, rng))
    worse = dataclasses.replace(position("worse", around(0.8, 0.01, rng), around(4.5, 0.01, rng)), **changes)
    assert dominated([better, worse])["worse"] == [], what


def test_a_larger_delta_is_a_weaker_promise():
    rng = np.random.default_rng(2)
    auroc, loss = around(0.5, 0.01, rng), around(4.0, 0.01, rng)
    a = position("a", auroc, loss, epsilon=4.0, delta=1e-3)
    b = position("b", auroc + 0.3, loss + 0.5, epsilon=4.0, delta=1e-6)
    assert dominated([a, b])["b"] == []
    assert dominated([a, dataclasses.replace(b, delta=1e-3)])["b"] == ["a"]


def test_plain_training_that_real_users_do_not_betray_does_not_beat_what_protects_canary_users():
    """Measured on plays: real users at chance under both, canary users at 0.88 without a defense and 0.55 with one."""
    rng = np.random.default_rng(3)
    plain = dataclasses.replace(position("none", around(0.5, 0.01, rng), around(3.7, 0.01, rng)), canaries=0.88)
    noised = position("example", plain.auroc, around(4.4, 0.01, rng))
    assert dominated([plain, dataclasses.replace(noised, canaries=0.9)])["example"] == ["none"]
    assert dominated([plain, dataclasses.replace(noised, canaries=0.55)])["example"] == []
    promised = dataclasses.replace(noised, canaries=0.9, epsilon_per_record=8.0, delta=1e-5)
    assert dominated([plain, promised])["example"] == []


def test_two_blocks_show_nothing():
    a, b = position("a", (0.5, 0.5), (4.0, 4.0)), position("b", (0.9, 0.9), (5.0, 5.0))
    assert dominated([a, b]) == {"a": [], "b": []}
    assert dominated([]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [3, 5])
def test_of_variants_that_are_all_alike_at_most_one_sweep_in_twenty_calls_any_dominated(blocks):
    rng = np.random.default_rng(blocks)
    wrong = 0
    for _ in range(2000):
        common = rng.standard_normal(blocks)
        its = [
            position(str(i), common + around(0, 1, rng, blocks), common + around(0, 1, rng, blocks)) for i in range(6)
        ]
        wrong += any(dominated(its).values())
    # Above this with probability under 1e-6 at a rate of 5 %.
    assert wrong <= 150


def test_without_holm_the_same_simulation_would_be_wrong_far_more_often(monkeypatch):
    monkeypatch.setattr("heldin.audit.frontier.holm", list)
    rng = np.random.default_rng(5)
    wrong = 0
    for _ in range(400):
        its = all_alike(rng, 5)
        wrong += any(dominated(its).values())
    assert wrong > 60


def test_numbers_that_rounding_made_equal_are_no_evidence():
    a = position("a", (0.500, 0.500, 0.500), (4.0, 4.0, 4.0))
    b = position("b", (0.501, 0.501, 0.501), (4.0001, 4.0001, 4.0001))
    assert dominated([a, b]) == {"a": [], "b": []}
