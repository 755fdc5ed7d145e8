"""The rule of a sweep names what to ship, or says why nothing, and how probably it would."""

import dataclasses

import pytest

from heldin.audit.decision import Answer
from heldin.bounds.verdict import Outcome
from heldin.record.document import read_record
from heldin.record.facts import ByExposure
from heldin.sweeps.load import load_sweep
from heldin.sweeps.shipping import shipping
from heldin.words.sweep_page import RuleReason
from tests.refusals import names
from tests.statements import values_of
from tests.tiny_sweeps import ULS, written

RULE = {
    "require": [
        {"of": "epsilon_per_user", "at_most": 8},
        {"of": "auroc", "limit": "upper", "at_most": 0.6},
        {"of": "loss_gain_over_base", "limit": "lower", "at_least": 0.05},
    ],
    "prefer": "loss_gain_over_base",
    "candidates": ["uls", "more"],
}


TWO = {"none": None, "uls": {"defense": ULS}, "more": {"defense": {**ULS, "noise_multiplier": 2.0}}}


def reaching(record, value, lower, upper):
    """The decision of the record with these AUROCs: the largest, and those that are shown and ruled out."""
    areas = {"largest_auroc": value, "shown_auroc": lower, "excluded_auroc": upper}
    return record.decision.model_copy(update={"decision": dataclasses.replace(record.decision.decision, **areas)})


def made_up(record, auroc, gain, *, spread=0.01, epsilon=6.0, half=0.02):
    """Records of five blocks with these AUROCs and gains, their own intervals half as wide as ``half``."""
    utility = record.utility
    found = {}
    for block, way in enumerate((-1, 0.5, 0, -0.5, 1), start=1):
        area, gained = auroc + way * spread, gain - way * spread
        reached = {"value": area, "lower": area - half, "upper": area + half}
        attacks, dials = (
            [its.model_copy(update={"auroc": its.auroc.model_copy(update=reached)}) for its in rows]
            for rows in (record.attacks, record.dials)
        )
        its = utility.gain.model_copy(update={"value": gained, "lower": gained - half, "upper": gained + half})
        found[block] = record.model_copy(
            update={
                "decision": reaching(record, area, area - half, area + half),
                "attacks": attacks,
                "dials": dials,
                "measures": {
                    **record.measures,
                    "utility": utility.model_copy(update={"gain": its}).model_dump(mode="json"),
                },
                "training": record.training.model_copy(update={"epsilon": epsilon}),
            }
        )
    return found


def test_the_rule_names_what_to_ship_or_why_not(swept, tmp_path):
    _, out, _ = swept
    record = read_record(out / "cells/1/uls/record.json")
    assert record.training.unit == "user"
    sweep = load_sweep(written(tmp_path, variants=TWO, decision=RULE, blocks=5))
    good, better, leaks = made_up(record, 0.52, 0.2), made_up(record, 0.53, 0.4), made_up(record, 0.75, 0.9)
    found = shipping(sweep, {"uls": good, "more": better})
    assert (found.answer, found.variant, found.block) == ("ship", "more", 1)
    assert values_of(found.reason, RuleReason.SELECTED) == {
        "variant": "more", "block": 1, "percent": 95.0, "candidates": 2,
    }  # fmt: skip
    assert names([t.requirement for t in found.candidates[0].tests][1], "auroc", "0.6")
    # A model whose own audit reports a leak is handed out only if no other model keeps the limits.
    first = better[1].decision
    leak = first.model_copy(update={"decision": dataclasses.replace(first.decision, answer=Answer.LEAKS)})
    alarmed = {**better, 1: better[1].model_copy(update={"decision": leak})}
    assert shipping(sweep, {"uls": good, "more": alarmed}).block == 2
    # A dial counts as an attack does, over the blocks and for the block whose model is handed out.
    far = {
        block: its.model_copy(
            update={
                "dials": [its.dials[0].model_copy(update={"auroc": leaks[block].attacks[0].auroc}), *its.dials[1:]],
                "decision": leaks[block].decision,
            }
        )
        for block, its in better.items()
    }
    assert shipping(sweep, {"uls": good, "more": far}).variant == "uls"
    # What leaks more may gain more.
    assert shipping(sweep, {"uls": good, "more": leaks}).variant == "uls"
    assert shipping(sweep, {"uls": leaks, "more": leaks}).answer == "none passes"
    assert shipping(sweep, {"uls": made_up(record, 0.5, 0.2, epsilon=9.0), "more": leaks}).answer == "none passes"
    # Text sampling promises an epsilon to every user with caps only; without, to people of so many records.
    by = ByExposure(counted="records", exposed=1, curve=[], group_size=None, entity_cap=None)
    for group_size, answer in ((None, "none passes"), (4, "ship")):
        texts = {
            block: its.model_copy(
                update={
                    "training": its.training.model_copy(
                        update={"unit": "user-entity", "by_exposure": by.model_copy(update={"group_size": group_size})}
                    )
                }
            )
            for block, its in good.items()
        }
        assert shipping(sweep, {"uls": texts, "more": leaks}).answer == answer
    unsure = made_up(record, 0.56, 0.2, spread=0.07)
    found = shipping(sweep, {"uls": unsure, "more": leaks})
    assert found.answer == "cannot be judged"
    assert found.reason.values["variants"] == [
        RuleReason.WITH_BLOCKS(variant="uls", blocks=found.candidates[0].blocks_needed)
    ]
    # The first block's own interval is above the limit, the second's is not.
    wide = made_up(record, 0.55, 0.2, spread=-0.02, half=0.045)
    assert shipping(sweep, {"uls": wide, "more": leaks}).block == 2
    none = made_up(record, 0.52, 0.2, half=0.2)
    alone = shipping(sweep, {"uls": none, "more": leaks})
    assert (alone.answer, alone.block, [its.passes for its in alone.candidates]) == (
        "cannot be judged",
        None,
        [True, False],
    )
    # A contradicted claim stands against a variant, whatever it reaches.
    bad = record.judgement.verdicts[0]
    contradicted = {
        block: its.model_copy(
            update={
                "judgement": dataclasses.replace(
                    its.judgement, verdicts=(dataclasses.replace(bad, outcome=Outcome.CONTRADICTED),)
                )
            }
        )
        for block, its in good.items()
    }
    found = shipping(sweep, {"uls": contradicted, "more": leaks})
    assert found.answer == "none passes"
    assert "is contradicted" in found.candidates[0].disqualified
    del good[3]
    unfinished = shipping(sweep, {"uls": good, "more": better})
    assert (unfinished.answer, unfinished.candidates) == ("cannot be judged", [])
    assert values_of(unfinished.reason, RuleReason.UNFINISHED) == {"variants": "uls"}


@pytest.mark.parametrize(
    ("changes", "data"),
    [
        (
            {"candidates": ["uls", "other"]},
            ("decision.candidates", "'other'", "'none', 'uls', 'more'"),
        ),
        ({"candidates": ["uls", "uls"]}, ("decision.candidates",)),
        ({"candidates": ["uls", "more", "none", "apart"]}, ("decision.candidates", "3")),
        ({"candidates": ["uls", "apart"]}, ("decision.candidates",)),
        ({"candidates": ["none"]}, ("epsilon_per_user",)),
        ({"require": [{"of": "auroc"}]}, ("decision.require.0", "at_most", "at_least")),
        ({"require": [{"of": "auroc", "at_most": 0.6, "limit": "lower"}]}, ("decision.require.0", "at_most", "upper")),
        ({"require": [{"of": "speed", "at_most": 1}]}, ("decision.require",)),
        ({"blocks": 4}, ("decision", "5 blocks", "4")),
    ],
)
def test_a_rule_that_cannot_be_applied_is_one_line(tmp_path, call, changes, data):
    blocks = changes.pop("blocks", 5)
    variants = {**TWO, "apart": {"split": {"seed": 5}, "defense": ULS}} if "apart" in str(changes) else TWO
    file = written(tmp_path, variants=variants, decision={**RULE, **changes}, blocks=blocks)
    code, _, err = call("sweep", file, "--check", "--out", tmp_path / "out")
    assert code == 2, err
    assert names(err, *data)


def test_check_says_how_probably_a_candidate_passes(tmp_path, call):
    file = written(tmp_path, variants=TWO, decision=RULE, blocks=5)
    code, printed, err = call("sweep", file, "--check", "--out", tmp_path / "out")
    assert code == 0, err
    assert names(printed, "5 blocks", "auroc", "0.6", "1,000")


def test_check_names_a_candidate_that_cannot_pass(tmp_path, call):
    require = [{"of": "epsilon_per_user", "at_most": 8}, *RULE["require"]]
    rule = {**RULE, "require": require, "candidates": ["none", "uls"]}
    file = written(tmp_path, variants=TWO, decision=rule, blocks=5)
    code, printed, err = call("sweep", file, "--check", "--out", tmp_path / "out")
    assert code == 0, err
    (rule,) = (line for line in printed.splitlines() if "epsilon_per_user" in line and line.startswith("rule: "))
    assert names(rule, "none")
    assert "uls" not in rule
