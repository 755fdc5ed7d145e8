"""Every planted bug is caught by its named check, which the correct trainer passes; chance failures below 1e-6."""

import functools
import math
import re

import numpy as np
import pytest

from audit.training import _bind_key
from audit.verdict import Outcome, Standing
from audit.white_box.checks import alarms
from audit.white_box.trainers import stepwise
from corpus.coins import keyed_digest, seed_key
from corpus.errors import InputError
from defenses.accounting import epsilon
from defenses.events import with_noise
from finetune.loop import job_name, train
from finetune.private import private_gradient
from finetune.recipe import Recipe
from tests.planted_bugs import checks, trainers
from tests.planted_bugs.bugs import BUGS, ONE_PERSON, correct
from tests.planted_bugs.checks import (
    EXACT,
    GAMES,
    ORACLE,
    RELEASED,
    TWO_NAMES,
    TWO_RELEASED,
    WEIGHTS,
    Corpus,
    checks_of,
)
from tests.planted_bugs.table import DOCUMENT, KEY, row

BY_NAME = {bug.name: bug for bug in BUGS}


@functools.cache
def _passed(runner):
    return checks_of(runner, correct(runner), KEY)


def _runner(name):
    return name if name in (*GAMES, ORACLE, TWO_NAMES) else "audit"


def _assert_caught(name, found):
    caught, passed = (checks.the_check(name, these) for these in (found, _passed(_runner(name))))
    assert caught.p_value < checks.level_of(name), caught
    assert passed.p_value >= checks.level_of(name), passed
    if name.startswith(EXACT):
        assert (caught.p_value, passed.p_value) == (0.0, 1.0)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught_by_its_check_and_the_correct_trainer_is_not(bug):
    runner = _runner(bug.caught_by)
    found = checks_of(runner, bug.plant(), KEY)
    for name in (bug.caught_by, *(other for other in bug.also if _runner(other) == runner)):
        _assert_caught(name, found)
    documented = next(line for line in DOCUMENT.read_text("utf-8").splitlines() if line.startswith(f"| {bug.name} |"))
    measured = checks.the_check(bug.caught_by, found).measured
    said = float(re.search(r"(?:measured|epsilon >=) ([-+.0-9e]+)", documented).group(1))
    assert said == pytest.approx(measured, rel=0.05, abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "name"), [(bug, name) for bug in BUGS for name in bug.also if _runner(name) != _runner(bug.caught_by)]
)
def test_a_planted_bug_is_caught_by_the_other_checks_of_its_row(bug, name):
    _assert_caught(name, checks_of(_runner(name), bug.plant(), KEY))


@pytest.mark.parametrize("name", ["clipping per micro-batch"])
def test_a_black_box_catch_is_a_certified_violation_of_epsilon_1(name):
    bug = BY_NAME[name]
    verdict = GAMES[bug.caught_by](trainers.by_sgd(bug.plant()), KEY).result().verdict
    assert (verdict.outcome, verdict.standing, verdict.exit_code) == (Outcome.VIOLATED, Standing.CERTIFIED, 3)
    assert checks.claimed().epsilon() == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize(("name", "code"), [("too much noise", 4), ("no clipping", 3)])
def test_a_white_box_catch_is_a_verdict_on_the_trainer(name, code):
    """Indicative where the curve stands; without clipping the guesses reject the curve itself."""
    found = checks.audit(BY_NAME[name].plant(), KEY)
    assert found.verdict.outcome is Outcome.VIOLATED
    assert found.exit_code == code
    assert any(alarm.name.startswith(BY_NAME[name].caught_by) for alarm in found.alarms)


def test_the_trainer_that_bugs_are_planted_in_is_correct():
    """`summing` with the flat clip passes the audit and the oracle: what its bugs are caught for is the bug."""
    plain = trainers.summing(trainers.flat)
    found = checks.audit(plain, KEY)
    assert (found.alarms, found.exit_code) == ((), 0)
    assert checks.oracle_checks(plain, KEY)[0].measured < 1e-5


def test_the_games_train_as_the_real_loop_does(tmp_path):
    member = checks._coins(KEY) & (np.arange(checks.CANARIES) < 60)
    by_hand, by_loop = checks._base(), checks._base()
    training, sequences = checks._training(KEY, member), checks._sequences(member)
    trainers.by_sgd(private_gradient)(by_hand, training, sequences)
    train(by_loop, sequences, trainers.BY_SGD, tmp_path, private=training)
    moved = float(np.abs(checks._flat(by_loop) - checks._flat(checks._base())).max())
    np.testing.assert_allclose(checks._flat(by_hand), checks._flat(by_loop), atol=1e-5 * moved)


def test_a_second_name_is_seen_by_shared_texts_only_and_mended_by_the_alias_file():
    """What no check sees: a person whose two names share no text. Every unit enrolled twice adds 2."""
    shared = BY_NAME["a user under two names"].plant()
    apart = Corpus(tuple({text: (user, text) for user, text in shared.letters}.values()))
    assert [checks.corpus_checks(c)[0].measured for c in (shared, apart)] == [2, 0]
    assert checks.corpus_checks(Corpus(shared.letters, ONE_PERSON))[0].measured == 0
    found = checks.audit(trainers.every_unit_twice(), KEY)
    assert checks.the_check("clip: what norm 1000 C adds", found.alarms).measured == pytest.approx(2.0, abs=1e-3)


def test_heldin_refuses_one_key_for_two_variants(tmp_path):
    member = checks._coins(KEY)
    training, sequences, recipe = checks._training(KEY, member), checks._sequences(member), Recipe()
    without = checks._training(KEY, np.zeros_like(member))
    names = [job_name(checks._base(), sequences, recipe, private) for private in (training, without)]
    (tmp_path / "ledger").mkdir()
    for name in (names[0], names[0]):
        _bind_key(tmp_path / "ledger" / "job", name)
    with pytest.raises(InputError, match="holds the key of another private job .* one key serves one job"):
        _bind_key(tmp_path / "ledger" / "job", names[1])


def test_the_effects_are_what_the_accountant_says():
    """The figures "1 to x" of the table, for the noise that the wrong trainers really add."""
    mechanism = checks.claimed()
    event, s, norm = mechanism.assumed_event, mechanism.noise_multiplier, mechanism.clip.norm
    assert s * norm < 1
    for name, share in (
        ("variance in place of standard deviation", s * norm),
        ("noise times the clip norm twice", norm),
        ("noise x 2/3", 2 / 3),
    ):
        true = epsilon(with_noise(event, s * share), mechanism.steps, checks.DELTA)
        said = float(re.search(r"1 to ([.0-9]+)", BY_NAME[name].effect).group(1))
        assert said == pytest.approx(true, rel=0.05), (name, true)


def test_the_document_has_a_row_for_every_bug_and_no_other():
    lines = [line for line in DOCUMENT.read_text("utf-8").splitlines() if line.startswith("| ")][1:]
    assert [line.rsplit("|", 2)[0] for line in lines] == [row(bug, "").rsplit("|", 2)[0] for bug in BUGS]


# Repeated trials.


@pytest.mark.slow
@pytest.mark.long
def test_the_correct_trainer_raises_few_alarms_in_repeated_trials():
    """All checks of the suite together at the 5 % level, 200 times: at most 12 alarms, none from an exact check."""
    raised = []
    for i in range(200):
        key = seed_key(40_000 + i)
        found = (
            *(c for name in (RELEASED, TWO_RELEASED) for c in checks_of(name, private_gradient, key)),
            *checks_of(WEIGHTS, stepwise(private_gradient), key),
            *checks_of(ORACLE, private_gradient, key),
            *checks_of("audit", private_gradient, key),
        )
        assert all(check.p_value == 1.0 for check in found if check.name.startswith(EXACT))
        raised += [[f"{a.name} {a.p_value:.2g}" for a in alarms(found, 0.05)]]
    print(f"{sum(map(bool, raised))} alarms of 200: {[names for names in raised if names]}")
    assert sum(map(bool, raised)) <= 12


@pytest.mark.slow
@pytest.mark.parametrize("bug", [bug for bug in BUGS if not bug.caught_by.startswith(EXACT)], ids=lambda bug: bug.name)
def test_a_catch_is_no_matter_of_luck(bug):
    """Over ten keys the logarithm of the p-value lies five of its deviations below the level: a miss below 1e-6."""
    logs = []
    for i in range(10):
        found = checks_of(_runner(bug.caught_by), bug.plant(), keyed_digest(KEY, "luck", str(i)))
        logs += [math.log10(max(checks.the_check(bug.caught_by, found).p_value, 1e-300))]
    room = (math.log10(checks.level_of(bug.caught_by)) - np.mean(logs)) / max(np.std(logs, ddof=1), 1e-9)
    print(f"{bug.name}: log10 p {np.mean(logs):.1f} +- {np.std(logs, ddof=1):.1f}, {min(room, 999):.0f} deviations")
    assert room > 5.0
