"""The epsilons that Lai et al. print, reproduced, and the command that prints them."""

import json

import pytest

from heldin.defenses.accounting.guarantees import moments_epsilon
from replication.published_claims import DELTA, published_claims


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
