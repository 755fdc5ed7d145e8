"""Study figures are vector, the same for the same numbers, and show every series."""

import xml.etree.ElementTree as ET

import pytest

from heldin.reports import figures
from replication import study_figures
from replication.effective_noise import effective_noise
from replication.mean_estimation import Task
from replication.mean_estimation_sweeps import Sweeps, run_study
from replication.published_claims import ClaimCurve
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("typeset")  # figures are drawn, and not drafted


@pytest.fixture(scope="module")
def small():
    task = Task(users=64, examples=2, dimension=2, rounds=4, delta=1e-4)
    return run_study(4, 0, task=task, sweeps=Sweeps((1.0, 4.0), (16, 32), (0.5, 1.0)))


@pytest.fixture(scope="module")
def rows():
    return effective_noise((256, 1024), (64, 256), (100, 1000), (3.0, 8.0))


def _words(monkeypatch, draw):
    """The figure's texts, kept as text instead of paths."""
    monkeypatch.setitem(figures.STYLE, "svg.fonttype", "none")
    return [element.text for element in ET.fromstring(draw()).iter("{http://www.w3.org/2000/svg}text")]


def test_figures_are_vector_and_the_same_for_the_same_numbers(small, rows):
    for draw, given in ((study_figures.mean_estimation_figure, small), (study_figures.effective_noise_figure, rows)):
        svg = draw(given)
        ET.fromstring(svg)
        assert "<path" in svg
        assert "<image" not in svg
        assert svg == draw(given)


def test_the_sweeps_stand_side_by_side(small, monkeypatch):
    words = _words(monkeypatch, lambda: study_figures.mean_estimation_figure(small))
    assert {"epsilon", "compute budget B, gradients a round", "within-user deviation"} <= set(words)
    assert {"ELS, G = K", "ULS, best G", "ULS, G as marked", "all examples, no privacy"} <= set(words)
    assert {"16", "32", "0.5", "4"} <= set(words)


def test_noises_and_their_crossings(rows, monkeypatch):
    words = _words(monkeypatch, lambda: study_figures.effective_noise_figure(rows))
    assert {"1,024 users, epsilon 3, 1,000 steps", "64 users a step", "256 users a step"} <= set(words)
    assert {"epsilon 3, 1,000 steps", "epsilon 8, 1,000 steps", "epsilon 3, 100 steps"} <= set(words)
    assert "epsilon 8, 100 steps" not in words
    with refused(by="effective_noise_figure", naming=("2", "1000")):
        study_figures.effective_noise_figure(rows, epsilon=2.0)


def test_every_category_of_entities_is_in_the_legend(monkeypatch):
    curves = [
        ClaimCurve(dataset, estimator, entities, (50, 500), (0.2, 0.4), (50.0, 300.0))
        for dataset, categories in (("one", ("GPE", "all")), ("two", ("Org", "all")))
        for estimator, of in (("f_E+", categories), ("f_E", ("all",)), ("user-level", ("all",)))
        for entities in of
    ]
    words = _words(monkeypatch, lambda: study_figures.claim_figure(curves))
    assert {"one", "two", "f_E+ (GPE), claimed", "f_E+ (Org), claimed", "users, what holds"} <= set(words)
    alone = [curve for curve in curves if curve.entities == "all"]
    words = _words(monkeypatch, lambda: study_figures.claim_figure(alone))
    assert words.count("f_E+, claimed") == 1
