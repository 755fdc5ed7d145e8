"""What an audit of a trainer says: outcome, exit code, and what a user may accept, in Python and at the command."""

import functools
import json
from dataclasses import replace

import numpy as np
import pytest

from heldin.bounds.judgement import evaluate
from heldin.bounds.scores import LabelledScores
from heldin.defenses.samplers import PoissonSampler
from heldin.white_box import engine
from heldin.white_box.check import exact, silent
from heldin.white_box.outcome import AlarmKind, TrainerOutcome
from heldin.white_box.power import claim_of, coin_design, trainer_mechanism, trainer_power
from heldin.white_box.stage import TIED_GPT_NEO

RIGHT = exact("a check that passes", "weights", 0.0, 0.0, "anything")
WRONG = exact("a check of the mechanism", "texts", 2.0, 0.0, "anything")
NOT_FINITE = exact("a check of the input", "unlike units", np.inf, 0.0, "anything", kind=AlarmKind.NON_FINITE)
ACCEPTED = (AlarmKind.NON_FINITE,)
OPTIONS = ["--kind", "example", "--sampling-rate", "0.5", "--steps", "3", "--delta", "1e-5", "--target-epsilon", "1"]


@functools.cache
def measured(apart, canaries):
    """The mechanism, what could be said of it, and the judgement of scores ``apart`` deviations from others'."""
    mechanism = trainer_mechanism("example", PoissonSampler(rate=0.5), steps=3, delta=1e-5, target_epsilon=1.0)
    member = np.arange(canaries) % 2 == 0
    scores = LabelledScores(np.random.default_rng(0).standard_normal(canaries) + apart * member, member)
    claim, _ = claim_of(mechanism)
    result = evaluate(scores, coin_design(0.05), delta=claim.delta, claims=(claim,))
    return mechanism, trainer_power(mechanism, canaries), result


def audit(*checks, apart=0.0, canaries=400, accepted=()):
    """An audit with these checks, whose canaries' scores lie ``apart`` deviations from others'."""
    mechanism, power, result = measured(apart, canaries)
    return engine.TrainerAudit(
        mechanism=mechanism,
        trainings=1,
        model=TIED_GPT_NEO,
        directions="coordinate",
        power=power,
        estimate=None,
        estimates=(),
        auroc=0.5,
        auroc_error=0.1,
        result=result,
        checks=(RIGHT, *checks),
        alarms=checks,
        accepted=accepted,
    )


@pytest.mark.parametrize(
    ("alarms", "apart", "outcome", "code", "after_accepting"),
    [
        ((), 0.0, TrainerOutcome.CONSISTENT, 0, 0),
        ((NOT_FINITE,), 0.0, TrainerOutcome.UNSAFE, 6, 0),
        ((WRONG,), 0.0, TrainerOutcome.MECHANISM_CONTRADICTED, 7, 7),
        ((WRONG, NOT_FINITE), 0.0, TrainerOutcome.MECHANISM_CONTRADICTED, 7, 7),
        ((), 50.0, TrainerOutcome.CURVE_CONTRADICTED, 3, 3),
        ((NOT_FINITE,), 50.0, TrainerOutcome.CURVE_CONTRADICTED, 3, 3),
        ((WRONG, NOT_FINITE), 50.0, TrainerOutcome.CURVE_CONTRADICTED, 3, 3),
    ],
)
def test_the_gravest_finding_is_the_outcome_and_accepting_hides_no_violation(
    alarms, apart, outcome, code, after_accepting
):
    found = audit(*alarms, apart=apart)
    assert (found.outcome, found.exit_code) == (outcome, code)
    accepting = replace(found, accepted=ACCEPTED)
    assert (accepting.outcome, accepting.exit_code) == (outcome, after_accepting)
    for its in (found, accepting):
        text = engine.table(its, 80)
        assert f"{outcome.value.upper()}: " in text
        assert all(f": {alarm.name}: " in text for alarm in alarms)
        assert max(len(line) for line in text.splitlines()) <= 80
        assert (", accepted): " in text) == (its is accepting and NOT_FINITE in alarms)


def test_too_few_canaries_to_reject_the_curve_are_inconclusive():
    assert audit(canaries=5).outcome is TrainerOutcome.INCONCLUSIVE


def test_weights_that_nobody_compared_are_inconclusive_whatever_else_passes():
    other = exact("another check that passes", "keys", 0.0, 0.0, "anything")
    for checks in ((other,), (other, silent("weights", "weights", "because"))):
        found = replace(audit(), checks=checks)
        assert (found.outcome, found.exit_code) == (TrainerOutcome.INCONCLUSIVE, 0)
    assert "not tested: because" in engine.table(found)


def test_json_has_the_kind_of_each_alarm():
    fields = audit(WRONG, NOT_FINITE, accepted=ACCEPTED).as_dict()
    assert (fields["outcome"], fields["exit_code"], fields["accepted"]) == ("mechanism contradicted", 7, ["non-finite"])
    assert fields["alarms"] == [
        {"name": WRONG.name, "kind": "mechanism", "accepted": False},
        {"name": NOT_FINITE.name, "kind": "non-finite", "accepted": True},
    ]
    assert [verdict["outcome"] for verdict in fields["verdicts"]] == ["consistent"]
    assert "verdict" not in fields


@pytest.mark.parametrize(("alarms", "code", "after_accepting"), [((NOT_FINITE,), 6, 0), ((WRONG, NOT_FINITE), 7, 7)])
def test_the_command_exits_as_the_outcome_says(call, monkeypatch, alarms, code, after_accepting):
    monkeypatch.setattr(engine, "audit_trainer", lambda *given, accepted, **options: audit(*alarms, accepted=accepted))
    command = ["white-box", *OPTIONS, "--canaries", "400", "--one-process"]
    for options, expected in (([], code), (["--accept", "non-finite", "--accept", "non-finite"], after_accepting)):
        assert call(*command, *options)[0] == expected
        found, out, _ = call(*command, *options, "--json")
        assert (found, json.loads(out)["exit_code"]) == (expected, expected)
    found, _, err = call(*command, "--accept", "mechanism")
    assert (found, err.count("\n")) == (2, 1)
    assert "--accept" in err
