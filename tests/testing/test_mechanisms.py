"""Checks of mechanisms: ours keep what they state, and a package's lie is named."""

import re

import pytest

from heldin.defenses.mechanisms.kinds import MECHANISMS
from heldin.testing import check_mechanism
from tests.declared_steps import HONEST, LIES, install, lying

SIZES = {"population": 60, "cohort": 6, "steps": 5, "delta": 1e-3, "noise_multiplier": 1.3}
OURS = {
    "none": {},
    "clip": {"unit": "batch", "clip_norm": 1.0},
    "uls": {**SIZES, "group_size": 2},
    "banded": {**SIZES, "group_size": 2, "bands": 3},
    "els": {**SIZES, "group_size": 2},
    "group": {**SIZES, "group_size": 2},
    "example": SIZES,
    "user-entity": SIZES,
    "uedp": {**SIZES, "entities": {"kind": "patterns"}, "account": "strict"},
    "filter": {"population": 6, "steps": 5, "delta": 1e-3, "target_epsilon": 8.0, "tau": 1.0},
}


def made(kind, **settings):
    return MECHANISMS.find(kind).model_validate({"kind": kind, **settings})


def test_every_mechanism_of_ours_is_checked():
    assert OURS.keys() == MECHANISMS.ours.keys()


@pytest.mark.parametrize("kind", OURS)
def test_ours_do_what_they_state(kind):
    check_mechanism(made(kind, **OURS[kind]))


@pytest.mark.parametrize("changes", [{"clip_kind": "normalised"}, {"sampler": "shuffled"}, {"clip_quantile": {}}])
def test_ours_do_in_other_settings_too(changes):
    check_mechanism(made("uls", **OURS["uls"], **changes))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A function that installs code as a package, and gives its mechanism."""
    monkeypatch.chdir(tmp_path)
    return lambda code: made(install(tmp_path, monkeypatch, code), population=60, steps=5, delta=1e-3)


def test_an_honest_package_passes(package):
    check_mechanism(package(HONEST))


@pytest.mark.parametrize(
    ("lie", "named"),
    [
        ("noise in each pass", "passes of one record adds noise of multiplier"),
        ("less noise than the event says", "a step without a unit adds noise of multiplier 1.0"),
        pytest.param(
            "the same noise in every step", "the noise of another step is not independent", marks=pytest.mark.slow
        ),
        pytest.param(
            "no noise without a unit", "a step without a unit adds noise of multiplier 0", marks=pytest.mark.slow
        ),
        ("not deterministic", "different noise, which also affects resumed training runs"),
        pytest.param(
            "the batch is clipped as one", "gradients of 50 and 50 clip norms add 1 clip norms", marks=pytest.mark.slow
        ),
        pytest.param(
            "a clip above the stated norm", "gradients of 50 clip norms add 3 clip norms", marks=pytest.mark.slow
        ),
        pytest.param("divided by those who were drawn", "clip norms to the sum", marks=pytest.mark.slow),
        ("reads a file", "members.txt"),
        pytest.param("changes weights", "changes the weights", marks=pytest.mark.slow),
        ("not finite", "not finite"),
        pytest.param("a plan from the data", "its plan depends on", marks=pytest.mark.slow),
    ],
)
def test_a_lie_is_named(package, lie, named):
    with pytest.raises(AssertionError, match=f"mechanism 'mine':\n(.*\n)*  - .*{re.escape(named)}"):
        check_mechanism(package(lying(lie)))


def test_every_lie_is_tried():
    (mark,) = test_a_lie_is_named.pytestmark
    cases = (case.values if hasattr(case, "values") else case for case in mark.args[1])
    assert {lie for lie, _ in cases} == LIES.keys()
