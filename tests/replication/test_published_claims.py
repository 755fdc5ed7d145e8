"""The epsilons that Lai et al. print, reproduced, and the command that prints them."""

import json
import xml.etree.ElementTree as ET

import pytest

from heldin.defenses.accounting.guarantees import moments_epsilon
from replication.published_claims import CURVE_STEPS, DELTA, ESTIMATORS, claim_curves, published_claims
from tests.refusals import names


@pytest.fixture(scope="module")
def computed():
    return published_claims()


def test_all_fifteen_published_epsilons_come_out(computed):
    claims = computed.claims
    assert len(claims) == 15
    assert max(abs(row.claimed - row.published) for row in claims) < 0.01
    # The stated rate gives none of them to the two printed digits; nor does the noise of its models, at T = 50.
    assert not [row for row in claims if round(row.as_stated, 2) == row.published]
    assert [row.as_stated for row in claims[:3]] == pytest.approx([0.501, 0.587, 1.113], abs=1e-3)
    assert claims[2].as_stated == pytest.approx(moments_epsilon(2.0, 0.05, 50, DELTA))
    of_models = [moments_epsilon(2.5, rate, 50, DELTA) for rate in (0.025 * 11_176 / 14_040, 0.025, 0.05)]
    assert of_models == pytest.approx([0.347, 0.418, 0.827], abs=1e-3)
    first = claims[0]
    assert (first.dataset, first.estimator) == ("CoNLL-2003", "f_E+")
    assert first.strict == pytest.approx(25.93, rel=5e-3)
    assert first.strict_any == pytest.approx(54.25, rel=5e-3)
    assert all(row.strict < row.claimed for row in claims if row.estimator == "user-level")
    assert all(row.strict > 20 * row.claimed for row in claims if row.estimator != "user-level")


def test_the_command_prints_all_fifteen_and_what_holds(replicate, computed, monkeypatch):
    monkeypatch.setattr("replication.published_claims.published_claims", lambda: computed)
    code, out, err = replicate("user-entity-claims", "--json")
    assert code == 0, err
    rows = json.loads(out)
    assert rows[0]["as_stated"] < rows[0]["claimed"]
    assert {"dataset", "steps", "published", "claimed", "strict"} <= set(rows[0])
    assert len(rows) == 15
    code, out, _ = replicate("user-entity-claims")
    assert (code, "\nnote: " in out) == (0, True)
    # Whoever reads the table reads that the cohorts are fitted.
    assert names(out, "as stated", "50 of 946", "500 of 7,536", "100 of 1,592", "0.501")


def test_curves_go_through_the_printed_epsilons(replicate, computed, tmp_path, monkeypatch):
    curves = claim_curves((50, 500))
    at = {
        (its.dataset, its.estimator, t): (c, h)
        for its in curves
        for t, c, h in zip(its.steps, its.claimed, its.holds, strict=True)
    }
    printed = [row for row in computed.claims if row.entities == "all"]
    assert len(printed) == 11
    for row in printed:
        claimed, holds = at[row.dataset, row.estimator, row.steps]
        assert abs(claimed - row.published) < 0.01
        assert holds == pytest.approx(row.strict_any)
    # More steps cost more; no other estimator's curve would pass.
    assert all(its.claimed[0] < its.claimed[1] and its.holds[0] < its.holds[1] for its in curves)
    assert (
        min(
            abs(at[row.dataset, other, row.steps][0] - row.published)
            for row in printed
            for other in ESTIMATORS
            if other != row.estimator
        )
        > 0.05
    )
    assert len(CURVE_STEPS) > 2
    monkeypatch.setattr("replication.published_claims.claim_curves", lambda **_: curves)
    code, out, err = replicate("user-entity-curves", "--out", tmp_path)
    assert code == 0, err
    assert "1.176" in out
    ET.parse(tmp_path / "user-entity-curves.svg")
    assert len(json.loads((tmp_path / "user-entity-curves.json").read_text(encoding="utf-8"))["curves"]) == 9


def test_curves_by_category_follow_table_ii(replicate, tmp_path):
    """Figure 9: the claim grows with the sentences of a category; what holds does not."""
    code, out, err = replicate("user-entity-curves", "--categories", "--out", tmp_path)
    assert code == 0, err
    curves = json.loads((tmp_path / "user-entity-curves.json").read_text(encoding="utf-8"))["curves"]
    last = {
        (its["dataset"], its["entities"]): (its["claimed"][-1], its["holds"][-1])
        for its in curves
        if its["estimator"] == "f_E+"
    }
    assert CURVE_STEPS[-1] == 500
    # SEC as the paper prints it; the others by the same formula, from the sentences that Table II prints.
    printed = {"GPE": 0.19, "Loc": 0.24, "PII": 0.26, "Org": 0.73, "all": 0.81}
    assert {its: round(last["SEC", its][0], 2) for its in printed} == printed
    conll = {"Person": 0.52, "Org": 0.60, "Loc": 0.63, "Misc": 0.43, "all": 1.31}
    news = {"GPE": 0.39, "Loc": 0.73, "PII": 0.78, "Org": 1.07, "all": 1.24}
    assert {its: round(last["CoNLL-2003", its][0], 2) for its in conll} == conll
    assert {its: round(last["AG", its][0], 2) for its in news} == news
    for dataset, categories in (("CoNLL-2003", conll), ("AG", news), ("SEC", printed)):
        assert len({last[dataset, its][1] for its in categories}) == 1
    svg = (tmp_path / "user-entity-curves.svg").read_text(encoding="utf-8")
    ET.fromstring(svg)
    assert names(out, "Person", "0.5196")
