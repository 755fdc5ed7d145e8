"""The epsilons that Lai et al. print, reproduced, and the command that prints them."""

import json
import xml.etree.ElementTree as ET

import pytest

from heldin.defenses.accounting.guarantees import moments_epsilon
from replication.published_claims import CURVE_STEPS, DELTA, ESTIMATORS, claim_curves, published_claims


@pytest.fixture(scope="module")
def computed():
    return published_claims()


def test_all_fifteen_published_epsilons_come_out(computed):
    claims = computed.claims
    assert len(claims) == 15
    assert max(abs(row.claimed - row.published) for row in claims) < 0.01
    # the rates of the paper's text do not give them
    assert abs(moments_epsilon(2.0, 0.05, 50, DELTA) - 1.18) > 0.05
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
    assert {"dataset", "steps", "published", "claimed", "strict"} <= set(rows[0])
    assert len(rows) == 15
    code, out, _ = replicate("user-entity-claims")
    assert (code, "\nnote: " in out) == (0, True)


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
