"""The figure of Propositions 1 and 2 is vector, the same for the same numbers, and shows every series."""

import xml.etree.ElementTree as ET

import pytest

from heldin.reports import figures
from replication.markov import MarkovCorpus
from replication.proposition_figure import proposition_figure
from replication.proposition_sweeps import Size, run_study

pytestmark = pytest.mark.usefixtures("typeset")  # figures are drawn, and not drafted


@pytest.fixture(scope="module")
def small():
    few = Size(MarkovCorpus(users=3, vocabulary=4, length=3, seed=1), 0.25, (0.3, 0.9))
    many = Size(MarkovCorpus(users=3, vocabulary=8, length=30, distinctiveness=0.2), 0.1, (0.2, 1.0))
    return run_study(1200, 1, sizes=(few, many))


def test_it_is_vector_and_the_same_for_the_same_numbers(small):
    svg = proposition_figure(small)
    ET.fromstring(svg)
    assert "<path" in svg
    assert "<image" not in svg
    assert svg == proposition_figure(small)


def test_it_shows_both_sizes_and_every_series(small, monkeypatch):
    monkeypatch.setitem(figures.STYLE, "svg.fonttype", "none")
    root = ET.fromstring(proposition_figure(small))
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"T", "bounds of Proposition 1", "between Jensen's bounds", "alpha chi² is above this"} <= set(words)
    assert "3 users, 4 words, 3 tokens: 64 sequences, all enumerated" in words
    assert "3 users, 8 words, 30 tokens: 1e+27 sequences, 1,200 drawn" in words
    assert words.count("as corrected") == words.count("at most this, as printed") == 2
