"""Parts of the white-box audit: what a unit adds by an oracle of its own, who takes part, what would have been seen.

Deviations are planted in simulated noise and draws; whole wrong trainers are in tests/planted_bugs.
"""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from heldin.base.coins import seed_key
from heldin.defenses.choices import NoiseGenerator
from heldin.defenses.samplers import PoissonSampler
from heldin.finetune.private import private_gradient
from heldin.finetune.units import plan_private_training
from heldin.white_box import findings, oracle
from heldin.white_box.check import LEVEL, SUBJECTS, TOTAL_LEVEL, alarms, exact, silent
from heldin.white_box.coins import coin_checks, observe
from heldin.white_box.coordinate_checks import (
    EMPTY_STEPS,
    SHARED,
    SMALL_STEPS,
    checks_of_empty_steps,
    empty_runs,
    lone_canary,
    lone_units,
    most_deviant_part,
    most_deviant_step,
    small_cohorts,
)
from heldin.white_box.draw_checks import checks_of_draws, drawing, steps_to_see_one_coin
from heldin.white_box.engine import SECTIONS, audit_trainer, clip_norms, parts
from heldin.white_box.laws import SEEN
from heldin.white_box.outcome import AlarmKind, TrainerOutcome
from heldin.white_box.power import claim_of, trainer_mechanism
from heldin.white_box.processes import Job, NotRun, together
from heldin.white_box.stage import SURE, set_stage
from heldin.white_box.step_checks import norms_of_units, unlike_checks
from heldin.white_box.trainers import (
    ObservedDraws,
    Run,
    changed,
    draws,
    loop_trainer,
    readings,
    releases,
    stepwise,
    watched,
)
from tests.oracles.private_step import naive_private_gradient
from tests.planted_bugs.plain import Plain
from tests.planted_bugs.wrong_texts import not_finite_summed, step_lost_to_one_unit, unclipped_texts
from tests.refusals import names, refused

STEPWISE = stepwise(private_gradient)
TRIALS = 100


def _mechanism(kind="uls", group_size=4, rate=0.2, steps=5):
    sampler = PoissonSampler(rate=rate)
    return trainer_mechanism(kind, sampler, steps=steps, delta=1e-5, group_size=group_size, target_epsilon=4.0)


@pytest.fixture(scope="module")
def stage():
    return set_stage(_mechanism(), 100, quiet=400)


@pytest.fixture(scope="module")
def norms(stage):
    return clip_norms(stage, seed_key(0))


def _many(trials=TRIALS):
    """Fewer have probability 1e-6 where each is seen with probability SEEN."""
    return int(stats.binom.ppf(1e-6, trials, SEEN))


# The keys of the runs.


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS)
def test_a_gradient_that_differs_in_its_last_bit_changes_no_draw(stage, section, monkeypatch):
    """As on another CPU: the same key must draw the same noise and the same cohorts there."""

    def keys(factor):
        seen = []

        def trainer(base, training, sequences):
            seen.append((training.key, training.mechanism.steps))
            STEPWISE(base, training, sequences)

        monkeypatch.setattr("heldin.white_box.engine.norms_of_units", lambda *its: factor * norms_of_units(*its))
        SECTIONS[section](stage, trainer, seed_key(0), 1)
        return seen

    assert keys(1.0) == keys(1.0 + 1e-12)


# The people and the oracle.


def test_writers_are_unlike_each_other_and_canaries_say_a_word_of_their_own(stage):
    people = stage.people
    counts = sorted(len(person.records) for person in people.writers)
    assert (counts[0], counts[-1], len(people.canaries)) == (1, 6, 100)
    texts = [person.records for person in people.writers]
    assert sum(texts.count(its) == 2 for its in texts) == 2
    names = [person.name for person in people.writers]
    assert len({name.lower() for name in names}) == len(names) - 1
    assert min(len(text) for its in texts for text in its) == 2
    spoken = [token for person in people.writers for text in person.records for token in text]
    assert not set(people.own_tokens) & set(spoken)
    assert len(set(people.own_tokens)) == 100
    sizes = [np.linalg.norm(oracle.gradient(stage.model(), its)) for its in texts]
    assert max(sizes) > 3 * min(sizes)


@pytest.mark.parametrize("norm", [0.01, 3.0, 1e3])
def test_the_oracle_is_the_oracle_of_the_tests(stage, norm):
    """One step without noise: contributions of one backward pass each, added up, against tests/oracles."""
    mechanism = changed(stage.mechanism, clip_norm=norm, rate=1.0, steps=1, noise_multiplier=0.0)
    training = replace(stage.planned(seed_key(3), stage.names_of_writers), mechanism=mechanism)
    expected = naive_private_gradient(stage.model(), training, 0, stage.sequences)
    flat = np.concatenate([g.numpy().ravel() for g in expected.values()]) * mechanism.divisor.value / norm
    alike = oracle.alike_in(training, training.units, 0, stage.sequences)
    columns = oracle.columns_of(stage.model(), alike, norm)
    everybody = np.array([len(names) for names in columns.names], dtype=float)
    assert sorted(everybody)[-2:] == [1.0, 2.0] or sorted(everybody)[-1] == 1.0  # who has two names may choose others
    assert columns.off(flat, everybody) < 1e-5
    assert columns.off(flat, everybody - (np.arange(everybody.size) == 0)) > 0.05
    np.testing.assert_allclose(columns.read(flat).taken, everybody, atol=1e-3)


def test_a_unit_without_records_or_without_a_finite_gradient_contributes_nothing(stage):
    assert not oracle.contribution(stage.model(), (), 0.1).any()
    sick = stage.model("sick")
    (person,) = [p for p in stage.people.everybody if p is stage.people.sick]
    assert not oracle.contribution(sick, person.records, 0.1).any()
    assert oracle.contribution(stage.model(), person.records, 0.1).any()
    assert all(bool(torch.isfinite(p).all()) for p in sick.model.parameters())


@pytest.mark.parametrize("trainer", [loop_trainer, stepwise(Plain())], ids=["loop", "plain"])
def test_who_takes_part_is_read_off_as_it_was_drawn(stage, norms, trainer):
    there, run = drawing(stage, seed_key(4), norms[0], steps=6)
    found = draws(there, trainer, run)
    drawn = [{unit.name for unit in run.training.drawn(step)} for step in range(6)]
    expected = [[sum(name in its for name in names) for names in found.names] for its in drawn]
    np.testing.assert_array_equal(found.texts, expected)
    assert found.odd < 1e-5
    assert found.canaries.sum() == sum(name.startswith("canary") for its in drawn for name in its)
    assert 0 < found.texts.sum() < found.texts.size


def test_steps_hold_what_their_cohorts_contribute_at_their_own_weights(stage, norms):
    mechanism = changed(stage.mechanism, clip_norm=norms[0], rate=0.5, steps=4, noise_multiplier=0.0)
    training = replace(stage.planned(seed_key(5), stage.names_of_writers), mechanism=mechanism)
    found = readings(stage, loop_trainer, Run(training))
    assert max(max(each.off, each.odd) for each in found) < 1e-5
    assert len({tuple(np.rint(each.taken)) for each in found}) > 1


# Cohorts of the steps with noise.


def test_the_cohorts_hold_nobody_one_unit_and_contributions_far_below_the_clip_norm(stage, norms):
    key, high = seed_key(7), norms[1]
    assert [len(run.training.units) for run in empty_runs(stage, key)] == [0, 13]
    assert not any(run.training.drawn(step) for run in empty_runs(stage, key) for step in range(EMPTY_STEPS))
    small, alone = small_cohorts(stage, key, high), lone_units(stage, key, high)
    sizes = [len(small.training.drawn(step)) for step in range(SMALL_STEPS)]
    assert 2 <= min(sizes) < max(sizes) <= 11
    drawn = [run.training.drawn(0) for run in (*alone, Run(lone_canary(stage, key)))]
    assert {len(units) for units in drawn} == {1}
    writers = {stage.records.users[units[0].rows[0]] for units in drawn if units[0].rows}
    assert writers == {*stage.names_of_writers, stage.people.canaries[0].name}
    assert sum(not units[0].rows for units in drawn) == 2  # nobody's records, and the gradient canary
    for run in (small, *alone):
        base, norm = stage.model(run.weights), run.training.mechanism.clip.norm
        texts = [tuple(tuple(stage.sequences[row].ids) for row in unit.rows) for unit in run.training.units]
        assert all(np.linalg.norm(oracle.gradient(base, its)) < 2e-4 * norm for its in texts)
    assert len({run.training.key for run in (small, *alone)}) == len(alone) + 1


def test_a_text_that_the_model_is_sure_of_has_a_loss_and_a_gradient_near_zero(stage):
    (text, *_) = stage.people.canaries[0].records
    ids = torch.tensor([list(text)])
    sure, plain = stage.model(SURE), stage.model()
    losses = [lm.model(input_ids=ids, labels=ids).loss.item() for lm in (sure, plain)]
    assert losses[0] < 1e-3 < 5.0 < losses[1]
    assert np.linalg.norm(oracle.gradient(sure, (text,))) < 0.01


@pytest.mark.parametrize("make", [not_finite_summed, step_lost_to_one_unit])
def test_what_one_unit_breaks_by_a_gradient_that_is_not_finite_is_a_kind_of_its_own(stage, norms, make):
    beside, without = unlike_checks(stage, stepwise(make()), seed_key(0), norms[0])
    assert (beside.alarm, beside.kind, without.alarm) == (True, AlarmKind.NON_FINITE, False)


def test_a_step_that_is_wrong_at_the_same_weights_without_that_unit_violates_the_mechanism(stage, norms):
    """At the sick model's weights, which no other section has: a trainer that clips tied models alone."""

    def step(model, training, number, sequences):
        tied = model.config.tie_word_embeddings
        (private_gradient if tied else unclipped_texts())(model, training, number, sequences)

    beside, without = unlike_checks(stage, stepwise(step), seed_key(0), norms[0])
    assert (beside.alarm, beside.kind, without.alarm) == (True, AlarmKind.MECHANISM, False)


# Watching.


def test_what_a_trainer_takes_from_the_global_generators_is_the_same_every_time(stage):
    training = replace(stage.planned(seed_key(6), ()), mechanism=changed(stage.mechanism, steps=1))
    taken = []

    def takes(model, training, number, sequences):
        taken.append((random.random(), np.random.rand(), float(torch.rand(1))))  # noqa: NPY002

    before = random.getstate(), torch.get_rng_state()
    for _ in range(2):
        releases(stage, stepwise(takes), Run(training))
    assert taken[0] == taken[1]
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_steps_that_are_not_shown_are_zeros_and_steps_beyond_the_last_an_error(stage):
    training = replace(stage.planned(seed_key(6), ()), mechanism=changed(stage.mechanism, steps=3))

    def shows(*steps):
        def run(base, training, sequences):
            for step in steps:
                training.watch(step, {name: torch.ones_like(p) for name, p in base.model.named_parameters()})

        return run

    stream = releases(stage, shows(0, 2), Run(training))
    assert stream.any(axis=1).tolist() == [True, False, True]
    with refused(by="watch", naming=("step 3", "3", "0")):
        watched(shows(3), stage.model(), training, stage.sequences, lambda step, released: None)


# What would have been seen. Levels of single checks are LEVEL.


def _empty(rng, stage):
    shapes = stage.canaries.shapes
    return {name: rng.standard_normal((2, EMPTY_STEPS, *shape)) for name, shape in shapes.items()}


def _of(name, checks):
    return next(check for check in checks if check.name == name)


TABLE, BIAS = "transformer.wte.weight", "transformer.h.0.mlp.c_proj.bias"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "place"), [("tensor", (BIAS, ...)), ("row", (TABLE, 299)), ("coordinate", (TABLE, (299, 15)))]
)
def test_deviant_noise_of_every_part_is_seen_as_stated(stage, what, place):
    rng, name = np.random.default_rng(7), f"noise in empty steps: the most deviant {what}"
    quiet = checks_of_empty_steps(_empty(rng, stage))
    assert not any(check.alarm for check in quiet)
    seen, times = 0, _of(name, quiet).smallest
    for _ in range(12):
        z = _empty(rng, stage)
        at = (slice(None), slice(None), *(place[1] if isinstance(place[1], tuple) else (place[1],)))
        z[place[0]][at] *= times
        seen += _of(name, checks_of_empty_steps(z)).alarm
    assert seen >= _many(12)


def test_deviant_noise_of_one_cohort_is_seen_as_stated():
    rng, trials = np.random.default_rng(13), 200

    def check(z):
        return most_deviant_step(z, "x", "that draws")

    quiet = [check(rng.standard_normal((SMALL_STEPS, 2000))) for _ in range(trials)]
    assert sum(its.p_value <= 0.05 for its in quiet) <= stats.binom.ppf(1 - 1e-6, trials, 0.05)
    seen = 0
    for _ in range(trials):
        z = rng.standard_normal((SMALL_STEPS, 2000))
        z[3] *= quiet[0].smallest
        seen += check(z).alarm
    assert seen >= _many(trials)
    assert 1.05 < quiet[0].smallest < 1.2


@pytest.mark.parametrize("place", [(BIAS, ...), (TABLE, 299)], ids=["tensor", "row"])
def test_a_part_without_noise_in_one_step_is_seen(stage, place):
    rng = np.random.default_rng(14)
    z = {name: rng.standard_normal((1, 28, *shape)) for name, shape in stage.canaries.shapes.items()}
    assert not most_deviant_part(z).alarm
    z[place[0]][0, 5, place[1]] = 0.0
    assert most_deviant_part(z).alarm


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("noise of a coordinate about its mean", lambda z: z[TABLE].__setitem__((0, ..., 9, 3), z[TABLE][0, 0, 9, 3])),
        ("noise of a coordinate under two keys", lambda z: z[BIAS].__setitem__((1, ..., 3), z[BIAS][0, :, 3])),
        ("noise shared by two steps", lambda z: z[TABLE].__setitem__((0, 5, 299), z[TABLE][0, 2, 299])),
        ("noise shared by two keys", lambda z: z[TABLE].__setitem__((1, 5, 299), z[TABLE][0, 2, 299])),
        ("noise shared by two tensors", lambda z: z.__setitem__(BIAS, z["transformer.ln_f.bias"])),
        ("noise at a distance within a tensor", lambda z: z[BIAS].__setitem__((..., slice(8, 16)), z[BIAS][..., :8])),
        ("noise far from zero", lambda z: [np.clip(its, -4.0, 4.0, out=its) for its in z.values()]),
    ],
)
def test_noise_that_repeats_itself_anywhere_is_seen(stage, name, plant):
    z = _empty(np.random.default_rng(8), stage)
    plant(z)
    found = checks_of_empty_steps(z)
    assert _of(name, found).alarm


def _drawn(rng, stage, steps=150, rates=None, keys=2, columns=11):
    rate = stage.mechanism.sampler.rate
    names = (*((f"writer {i}",) for i in range(columns)), ("one", "two"))
    return [
        ObservedDraws(
            np.column_stack(
                [rng.random((steps, columns)) < (rate if rates is None else rates), rng.binomial(2, rate, steps)]
            ).astype(float),
            names,
            (rng.random((steps, 60)) < rate).astype(float),
            0.0,
        )
        for _ in range(keys)
    ]


def test_draws_hold_their_level(stage):
    rng = np.random.default_rng(9)
    trials = [checks_of_draws(_drawn(rng, stage, steps=40), stage) for _ in range(100)]
    random_ones = [[check.p_value for check in checks if check.level] for checks in trials]
    raised = sum(min(values) <= 0.05 / len(values) for values in random_ones)
    assert raised <= stats.binom.ppf(1 - 1e-6, 100, 0.05)


def _planted(name, plant, trials=TRIALS):
    """How often the check alarms."""

    def count(stage):
        rng = np.random.default_rng(10)
        return sum(_of(name, checks_of_draws(plant(rng), stage)).alarm for _ in range(trials))

    return count


@pytest.mark.slow
def test_a_rate_of_one_writer_is_seen_as_stated(stage):
    rng = np.random.default_rng(11)
    name = "sampling: rate of each of texts"
    rate = _of(name, checks_of_draws(_drawn(rng, stage), stage)).smallest
    assert 0.3 < rate < 0.5
    rates = np.where(np.arange(11) == 4, rate, 0.2)
    assert _planted(name, lambda rng: _drawn(rng, stage, rates=rates))(stage) >= _many()
    assert f"{rate:.2g}" in _of(name, checks_of_draws(_drawn(rng, stage), stage)).detects


def test_one_coin_for_two_units_is_seen_as_stated(stage):
    steps = steps_to_see_one_coin(0.2, 60)
    assert steps_to_see_one_coin(0.2, 10) <= steps <= steps_to_see_one_coin(0.2, 100)

    def plant(rng):
        (drawn,) = _drawn(rng, stage, steps=steps, keys=1)
        drawn.canaries[:, 7] = drawn.canaries[:, 3]
        return [drawn]

    assert _planted("sampling: two of canaries together", plant, 40)(stage) >= _many(40)


def test_public_coins_of_one_writer_and_of_all_are_seen(stage):
    def plant(rng, columns):
        first, second = _drawn(rng, stage)
        second.texts[:, columns] = first.texts[:, columns]
        return [first, second]

    assert _planted("keys: texts drawn under both", lambda rng: plant(rng, slice(0, 11)), 20)(stage) == 20
    assert _planted("keys: each of texts drawn under both", lambda rng: plant(rng, slice(3, 4)), 40)(stage) >= 30


def test_one_coin_for_two_steps_is_seen(stage):
    def plant(rng):
        found = _drawn(rng, stage)
        for its in found:
            its.texts[7::14] = its.texts[0::14][: len(its.texts[7::14])]  # a quarter of the steps, seven steps later
            its.texts[8::14] = its.texts[1::14][: len(its.texts[8::14])]
            its.texts[9::14] = its.texts[2::14][: len(its.texts[9::14])]
        return found

    assert _planted("sampling: the same texts some steps later", plant, 10)(stage) == 10


def test_text_canaries_tell_of_texts_that_are_not_clipped(stage):
    ceiling = claim_of(stage.mechanism)[0].ceiling.auroc
    right, wrong = (
        coin_checks([observe(stage, seed_key(70 + i), trainer) for i in range(2)], ceiling)
        for trainer in (STEPWISE, stepwise(unclipped_texts()))
    )
    name = "AUROC of text canaries, at most"
    assert not any(check.alarm for check in right)
    assert 0.5 < _of(name, right).measured < ceiling + 0.05
    assert _of(name, wrong).measured > ceiling + 0.1


# Levels, words, processes.


@pytest.mark.slow
def test_levels_of_all_checks_sum_to_at_most_one_percent(stage, norms):
    """Those of every section, of whole trainings and of two processes, which repeat those of empty steps and draws."""
    rng = np.random.default_rng(12)
    again = [*checks_of_empty_steps(_empty(rng, stage)), *checks_of_draws(_drawn(rng, stage, keys=1), stage)]
    found = audit_trainer(stage.mechanism, [seed_key(1), seed_key(2)], canaries=100, effort=1)
    assert found.outcome is TrainerOutcome.CONSISTENT
    levels = [check.level for check in (*found.checks, *again)]
    assert set(levels) == {0.0, SHARED, LEVEL}
    assert sum(levels) <= TOTAL_LEVEL
    assert alarms([*found.checks, *again]) == ()
    told = findings.tested_lines(found.checks)
    assert len(told) == len(SUBJECTS) - 1
    assert all("0.99" in line for line in told.values())
    assert all(check.detects or check.untested for check in found.checks)
    assert parts(2, processes=True) == 3 + len(SECTIONS)


def test_what_could_not_be_tested_is_said_as_such():
    made = exact("a", "keys", 0.0, 0.0, "unit=3")
    lines = findings.closing_lines([made, silent("b", "rates", "because")])
    (tested,) = (line for line in lines if line.startswith("tested: "))
    assert names(tested, "two keys", "1")
    assert "own rate" not in "".join(lines)
    assert "not tested: because" in lines
    assert any("unit=3" in line for line in lines)


def test_a_trainer_that_no_other_process_can_import_is_not_tested_in_several(stage, monkeypatch):
    run = Run(replace(stage.planned(seed_key(6), ()), mechanism=changed(stage.mechanism, steps=1)))
    with refused(
        by=together,
        naming="lambda",
        kind=NotRun,
    ):
        together([Job("releases", run, stage, stepwise(lambda *arguments: None))])
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refused(by=together, naming="torch.distributed", kind=NotRun):
        together([Job("releases", run, stage, loop_trainer)])


@pytest.mark.slow
def test_two_processes_release_what_one_does(stage):
    training = replace(
        stage.planned(seed_key(6), stage.names_of_writers), mechanism=changed(stage.mechanism, rate=0.5, steps=4)
    )
    (both,) = together([Job("releases", Run(training), stage, loop_trainer)])
    alone = releases(stage, loop_trainer, Run(training))
    for one in both:
        np.testing.assert_allclose(one, alone, atol=1e-3)


@pytest.mark.slow
def test_a_process_that_fails_is_named_with_its_last_line(stage):
    training = plan_private_training(stage.mechanism, seed_key(6), stage.records, NoiseGenerator.PHILOX)
    broken = replace(training, mechanism=changed(stage.mechanism, rate=1.0, steps=1), canaries=None)
    with pytest.raises(NotRun, match="process [01] of 2 stopped: AssertionError"):
        together([Job("readings", Run(broken), stage, loop_trainer)])
