"""Each bound is right as often as it says, on mechanisms of known epsilon; the rule that most tools use is not."""

import dataclasses
import functools
import re

import numpy as np
import pytest

from heldin.bounds import one_run
from heldin.bounds.judgement import RULES, plan_rule
from heldin.bounds.scores import LabelledScores
from tests.coverage import measure
from tests.coverage.measure import DOCUMENT, Row, most_wrong
from tests.coverage.mechanisms import family_of, randomised_response, subsampled


def failures(rows):
    return [row for row in rows if row.gated and not row.passes]


def test_exact_coverage():
    rows = measure.exact((50, 500))
    assert not failures(rows)
    assert max(row.share for row in rows if row.bound.startswith("one-run, ")) > 0.03  # and not idle


@pytest.mark.slow
@pytest.mark.parametrize(("users", "epsilons", "trials"), [(50, (0.0, 1.0), 200), (500, (0.5, 4.0), 150)])
def test_simulated_coverage(users, epsilons, trials):
    assert not failures(measure.simulate(epsilons, users, trials, seed=11, estimates=False, plans=False))


def test_coverage_of_the_plans_noise_inverted():
    """A plan of epsilon 1 that is kept; a trainer of epsilon 16 is bounded above 1."""
    kept = subsampled(1.0)
    assert measure.count(measure.PLAN.values(), kept, 500, 60, coins=True, seed=4)[0] <= most_wrong(60)
    broken = dataclasses.replace(kept, draw=subsampled(16.0).draw)
    assert measure.count(measure.PLAN.values(), broken, 500, 20, coins=True, seed=4)[0] > most_wrong(20)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("users", "epsilons"),
    [
        (50, measure.EPSILONS),
        pytest.param(500, measure.EPSILONS, marks=pytest.mark.long),
        *(pytest.param(5000, (epsilon,), marks=pytest.mark.long) for epsilon in (1.0, 4.0)),
    ],
)
def test_simulated_coverage_at_length(users, epsilons):
    assert not failures(measure.simulate(epsilons, users, 2000, seed=12, estimates=False))


@pytest.mark.slow
def test_exact_coverage_at_5000():
    assert not failures(measure.exact((5000,)))


def test_the_best_threshold_without_a_price_fails():
    row = measure.failing_rule(1000)
    assert not row.passes
    assert 0.11 < row.share < 0.18


@functools.cache
def _p_value(game, epsilon):
    return one_run.one_run_p_value(game, epsilon, 0.0)


def test_the_best_number_of_guesses_without_a_price_fails():
    """What the Bonferroni price of the grid is for: the best of all r at alpha each is wrong too often."""

    def unpaid(scores, known):
        games = (one_run.guess(scores, r) for r in range(10, 501, 20))
        return any(_p_value(game, known.epsilon) <= 0.05 for game in games)

    assert measure.count([unpaid], randomised_response(0.0), 500, 300, coins=True, seed=5)[0] > most_wrong(300)


def test_choosing_the_sides_by_the_coins_fails():
    """How many guesses are "in" may follow from the scores, not from membership: the best split is wrong too often."""

    def with_labels(scores, known):
        order = np.argsort(scores.scores)
        right = np.append(0, np.cumsum(~scores.member[order])), np.append(0, np.cumsum(scores.member[order][::-1]))
        best = [(t, int((right[0][: t.made + 1] + right[1][t.made :: -1]).max())) for t in one_run.paid_tries(500)]
        games = ((one_run.Guesses(500, t.made, correct), t.level) for t, correct in best)
        return any(_p_value(game, known.epsilon) <= level for game, level in games)

    def without(scores, known):
        return one_run.steinke_bound(scores, 0.0).epsilon > 0.0

    wrong = measure.count([with_labels, without], randomised_response(0.0), 500, 300, coins=True, seed=5)
    assert wrong[0] > most_wrong(300) >= wrong[1]


def test_one_run_bounds_fail_on_dependent_coins():
    """docs/theory.md#conditions-of-one-run: one of each pair is in; a mechanism of epsilon 1 is rejected at 1."""
    rng = np.random.default_rng(6)
    wrong = 0
    for _ in range(100):
        first = rng.random(100) < 0.5
        # which of the pair is in; a fair coin if both or neither were: removing one changes 1 / (2 e) to 1 / 2
        told = np.where(rng.random(100) < 1 - 1 / (2 * np.e), first, ~first)
        both = np.concatenate([told, ~told]) + 1e-3 * rng.random(200)
        scores = LabelledScores(both, np.concatenate([first, ~first]))
        wrong += one_run.steinke_bound(scores, 0.0, made=200).epsilon > 1.0
    assert 65 < wrong < 92  # 79 are to be expected


def test_a_row_is_judged_as_it_should():
    assert most_wrong(2000) == pytest.approx(150, abs=2)
    assert Row("b", "m", 1.0, 50, 2000, 149).passes
    assert not Row("b", "m", 1.0, 50, 2000, 160).passes
    assert Row("b", "m", 1.0, 50, None, 0.05).passes
    assert not Row("b", "m", 1.0, 50, None, 0.0501).passes


def test_the_document_and_the_numbers_beside_the_bounds_agree():
    text = DOCUMENT.read_text(encoding="utf-8")
    found = dict(
        re.findall(r"^\| ([^|]+) \| (\d\.\d{4}) \| [^|]* \| (?:yes|estimate, no limit) \|$", text, re.MULTILINE)
    )
    stated = {rule.name: rule.coverage for rule in (*RULES, plan_rule(family_of(1.0, 0.1, 10)))}
    assert {name: float(found[name]) for name in stated} == stated
    failing = re.findall(r"^\| ([^|]+) \| [^|]* \| [^|]* \| \*\*no\*\* \|$", text, re.MULTILINE)
    assert failing == ["best threshold, uncorrected"]


def test_the_table_is_that_of_the_cases():
    cases = measure.read_cases(measure.CASES)
    assert len(cases) == 657
    _, first, rest = DOCUMENT.read_text(encoding="utf-8").partition(measure.FIRST)
    assert measure.summary(cases) == first + rest


def test_cases_are_read_as_they_were_written(tmp_path):
    measure.write_cases(measure.read_cases(measure.CASES), tmp_path / "cases.csv")
    assert (tmp_path / "cases.csv").read_bytes() == measure.CASES.read_bytes()


def test_a_few_cases_and_their_summary(tmp_path):
    rows = [
        Row("a", "m", 1.0, 50, 100, 3),
        Row("a, r = 50", "m", 1.0, 50, None, 0.04),
        Row("e", "m", 0.0, 50, 10, 9, False),
    ]
    text = measure.summary(rows)
    assert "| a | 0.9600 | m, epsilon 1, 50 users | yes |" in text
    assert "| e | 0.1000 | m, epsilon 0, 50 users | estimate, no limit |" in text
    measure.write_cases(rows, tmp_path / "cases.csv")
    lines = (tmp_path / "cases.csv").read_text(encoding="utf-8").splitlines()
    assert lines[1:] == [
        "a,m,1,50,100,3,0.0300,yes",
        '"a, r = 50",m,1,50,exact,,0.0400,yes',
        "e,m,0,50,10,9,0.9000,no",
    ]
    assert measure.read_cases(tmp_path / "cases.csv") == rows
