"""`heldin account`, `bound` and `power`: the examples of the README, their JSON, their exit codes."""

import json
import re

import numpy as np
import pytest

from heldin.bounds.verdict import describe_outcome
from tests.refusals import names
from tests.theory_tables import numbers, rows

EXACT = {row[:2]: row for row in numbers("table-of-exact-epsilons")}
(ULS,) = (row for row in numbers("table-of-calibrated-noise") if row[:3] == (16, 1024, 1))


@pytest.mark.parametrize(
    ("arguments", "unit", "epsilon", "noise_multiplier"),
    [
        (["uls", "--users", 1024, "--cohort", 16, "--steps", 1000, "--target-epsilon", 4], "user", 4.0, ULS[4]),
        (
            ["els", "--group-size", 8, "--sampling-rate", 0.01, "--steps", 2000, "--noise-multiplier", 2],
            "user",
            EXACT[2.0, 8][2],
            2.0,
        ),
        (
            ["group", "--group-size", 8, "--sampling-rate", 0.01, "--steps", 2000, "--noise-multiplier", 1],
            "user",
            EXACT[1.0, 8][2],
            1.0,
        ),
        (
            ["example", "--sampling-rate", 0.01, "--steps", 2000, "--noise-multiplier", 1],
            "example",
            EXACT[1.0, 1][2],
            1.0,
        ),
    ],
    ids=["uls", "els", "group", "example"],
)
def test_account_prints_the_numbers_of_the_page(call, arguments, unit, epsilon, noise_multiplier):
    """docs/theory.md#table-of-exact-epsilons and docs/theory.md#table-of-calibrated-noise."""
    code, out, err = call("account", *arguments, "--delta", 1e-6, "--json")
    assert code == 0, err
    row = json.loads(out)
    assert row["unit"] == unit
    assert row["epsilon"] == pytest.approx(epsilon, rel=2e-3)
    assert row["noise_multiplier"] == pytest.approx(noise_multiplier, rel=2e-3)
    assert row["delta"] == 1e-6
    if unit == "example":
        assert row["auroc_bound"] is None
        assert row["tpr_at_1pct_fpr_bound"] is None
    else:
        assert 0.5 < row["auroc_bound"] <= 1
        assert 0.01 < row["tpr_at_1pct_fpr_bound"] <= 1
    code, out, _ = call("account", *arguments, "--delta", 1e-6)
    assert code == 0
    assert "noise multiplier" in out
    assert ("AUROC" in out) == (unit == "user")


@pytest.mark.parametrize(
    ("arguments", "by", "naming"),
    [
        (["uls", "--users", 10, "--cohort", 16, "--noise-multiplier", 1], "_rate", ("cohort", "16", "10")),
        (["uls", "--noise-multiplier", 1], "_rate", ("users", "cohort")),
        (["uls", "--sampling-rate", 0.1], "_with_noise", ()),
        (
            ["els", "--group-size", 0, "--sampling-rate", 0.1, "--noise-multiplier", 1],
            "check_count",
            ("group size", "0", "1"),
        ),
        (["uls", "--sampling-rate", 0.1, "--noise-multiplier", -1], "check_noise", "-1.0"),
    ],
)
def test_account_refuses_in_one_line(call, arguments, by, naming):
    code, _, err = call("account", *arguments, "--steps", 10, "--delta", 1e-6)
    assert code == 2
    assert call.refused(by=by, naming=naming)
    assert len(err.splitlines()) == 1


@pytest.fixture
def scores(tmp_path):
    def write(shift, users=400):
        generator = np.random.default_rng(1)
        member = generator.integers(0, 2, users)
        rows = [f"u{i},{generator.normal(shift * m, 1):.6f},{m}" for i, m in enumerate(member)]
        path = tmp_path / "scores.csv"
        path.write_text("user,score,member\n" + "\n".join(rows) + "\n", encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("shift", "assignment", "outcome", "standing", "code"),
    [
        (4.0, "coin", "contradicted", "certified", 3),
        (4.0, "unknown", "contradicted", "indicative", 4),
        (0.0, "coin", "consistent", "certified", 0),
    ],
)
def test_bound_judges_a_claim_and_says_so_by_its_exit_code(call, scores, shift, assignment, outcome, standing, code):
    arguments = ["bound", scores(shift), "--assignment", assignment, "--claim", "epsilon=0.5,delta=1e-5"]
    found, out, _ = call(*arguments, "--json")
    assert found == code
    result = json.loads(out)
    assert set(result) == {"bounds", "refused", "verdict", "verdicts"}
    assert [its["claim"]["values"] for its in result["verdicts"]] == [{"epsilon": 0.5, "delta": 1e-05}]
    assert (result["verdict"]["outcome"], result["verdict"]["standing"]) == (outcome, standing)
    assert {b["standing"] for b in result["bounds"]} == {standing}
    assert all(set(b) == {"name", "epsilon_lower", "level", "standing", "coverage"} for b in result["bounds"])
    assert {"name", "refusal", "reason"} == set(result["refused"][0])
    found, out, _ = call(*arguments)
    assert found == code
    assert out.lower().startswith(describe_outcome(outcome, standing))


def test_bound_refuses_damaged_scores_in_one_line(call, scores, tmp_path):
    path = scores(1.0)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(text.splitlines()[3].split(",")[1], "nan"), encoding="utf-8")
    code, _, err = call("bound", path, "--delta", 1e-5)
    assert code == 2
    assert names(err, "row 4", "nan")
    assert "nan" in err
    code, _, err = call("bound", tmp_path / "gone.csv", "--delta", 1e-5)
    assert code == 2
    assert "gone.csv" in err
    code, _, err = call("bound", path, "--claim", "epsilon=4")
    assert code == 2
    assert call.refused(by="parse_claim", naming=("'epsilon=4'", "delta:", "delta=1e-6"))


def test_power_says_what_could_be_shown(call):
    code, out, _ = call("power", "--users", 500, "--auroc", 0.75, "--delta", 1e-5, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["users"] == 500
    code, out, _ = call("power", "--users", 500, "--auroc", 0.75, "--claim", "epsilon=4,delta=1e-6")
    assert code == 0
    (row,) = (row for row in rows("table-of-largest-certifiable-epsilons") if row["users"] == "500")
    assert row["one-run, delta 1e-5"] in out
    assert "claim: epsilon 4 at delta 1e-06" in out


def test_power_says_what_no_leak_found_takes(call):
    arguments = ("power", "--users", 340, "--auroc", 0.7)
    assert json.loads(call(*arguments, "--json")[1])["no_leak_found"]["users_needed"] == 530
    for extra in ((), ("--claim", "epsilon=4,delta=1e-6")):
        parts = call(*arguments, *extra)[1].split("\n\n")
        assert all(part.strip() == part for part in parts[:-1])
        numbers_in_order = ["15", "0.7", "0.6", "0.15", "5", "530", "340", "85", "100", "0.61"]
        assert re.findall(r"\d+(?:\.\d+)?", parts[-1]) == numbers_in_order
