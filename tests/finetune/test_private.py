"""The private step against one backward pass per unit; noise once; empty cohorts; constants; kill and resume."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import stats

from heldin.base.coins import seed_key
from heldin.defenses.choices import (
    BatchClip,
    ConstantDivisor,
    FlatClip,
    NoiseGenerator,
    NormalisedClip,
    RealisedCohortDivisor,
)
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.samplers import PoissonSampler
from heldin.finetune.loop import train
from heldin.finetune.passes import cut
from heldin.finetune.private import private_gradient
from heldin.finetune.recipe import Optimizer, Recipe, Schedule, Select
from heldin.finetune.units import PrivateRecords, plan_private_training
from tests.oracles.private_step import naive_private_gradient
from tests.refusals import refused

KEY = seed_key(21)


def _records(sequences):
    """Ten users with one to seven records."""
    owners = [u for u in range(10) for _ in range(1 + u % 7)][: len(sequences)]
    owners += [9] * (len(sequences) - len(owners))
    ids = [f"record{i}" for i in range(len(sequences))]
    return PrivateRecords(ids, [f"user{o}" for o in owners], [len(s) for s in sequences])


def _mechanism(kind="uls", **changes):
    fields = {
        "unit": kind if kind in ("example", "user-entity") else "user",
        "sampled": "user" if kind == "uls" else "example",
        "sampler": PoissonSampler(rate=0.4),
        "group_size": 1 if kind in ("example", "user-entity") else 3,
        "exposed": 1 if kind == "user-entity" else None,
        "record_selection": "all" if kind == "user-entity" else "random",
        "clip": FlatClip(norm=0.5),
        "noise_multiplier": 0.8,
        "steps": 12,
        "delta": 1e-4,
        "divisor": ConstantDivisor(value=4),
        **changes,
    }
    return Mechanism(**fields)


def _training(sequences, kind="uls", *, micro_records=64, noise=NoiseGenerator.PHILOX, exactly=False, **changes):
    return plan_private_training(
        _mechanism(kind, **changes), KEY, _records(sequences), noise, micro_records=micro_records, exactly=exactly
    )


def _cohort(training, step):
    return [training.rows(unit, step) for unit in training.drawn(step)]


def _gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def _assert_same(found, expected):
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=2e-6, rtol=2e-4)


@pytest.mark.parametrize("kind", ["uls", "els", "example", "user-entity"])
@pytest.mark.parametrize("clip", [FlatClip(norm=0.5), FlatClip(norm=1e4), NormalisedClip(norm=0.5)])
def test_a_private_step_equals_the_oracle(make_lm, sequences, kind, clip):
    training = _training(sequences, kind, clip=clip)
    lm = make_lm()
    for step in (0, 1):
        expected = naive_private_gradient(make_lm(), training, step, sequences)
        private_gradient(lm.model, training, step, sequences)
        _assert_same(_gradients(lm.model), expected)


def test_the_number_of_micro_batches_changes_nothing(make_lm, sequences):
    """Were noise added or clipping done per micro-batch, this would differ."""
    found = []
    for micro_records in (1, 5, 1000):
        lm = make_lm()
        private_gradient(lm.model, _training(sequences, micro_records=micro_records), 0, sequences)
        found.append(_gradients(lm.model))
    _assert_same(found[1], found[0])
    _assert_same(found[2], found[0])


def test_passes_keep_units_whole():
    assert cut([3, 1, 0, 2, 10, 1], 4) == [[0, 1], [3], [4], [5]]
    assert cut([], 4) == []


def test_an_empty_cohort_still_gives_noise_of_the_stated_deviation(make_lm, sequences):
    training = _training(sequences, sampler=PoissonSampler(rate=1e-9))
    lm = make_lm()
    assert private_gradient(lm.model, training, 0, sequences) is None
    values = torch.cat([g.flatten() for g in _gradients(lm.model).values()]).numpy()
    stated = 0.8 * 0.5 / 4
    assert stats.kstest(values / stated, "norm").pvalue > 1e-6
    assert stats.kstest(values / (stated * 2 / 3), "norm").pvalue < 1e-6
    assert stats.kstest(values / (stated * 3 / 2), "norm").pvalue < 1e-6


def test_noise_is_added_once_a_step_and_is_new_every_step(make_lm, sequences):
    """The difference to the noiseless sum is the noise itself: its deviation, and no correlation between steps."""
    noises = []
    for step in (0, 1):
        with_noise, without = make_lm(), make_lm()
        private_gradient(with_noise.model, _training(sequences, micro_records=2), step, sequences)
        private_gradient(without.model, _training(sequences, micro_records=2, noise_multiplier=0.0), step, sequences)
        a, b = _gradients(with_noise.model), _gradients(without.model)
        noises.append(torch.cat([(a[n] - b[n]).flatten() for n in a]).numpy() * 4)
    for noise in noises:
        assert stats.kstest(noise / 0.4, "norm").pvalue > 1e-6
    assert stats.pearsonr(*noises).pvalue > 1e-6


@pytest.mark.parametrize("kind", ["uls", "els", "example", "user-entity"])
def test_one_unit_moves_the_noised_sum_by_at_most_the_sensitivity(make_lm, sequences, kind):
    training = _training(sequences, kind, noise_multiplier=0.0, sampler=PoissonSampler(rate=1.0))
    whole = make_lm()
    private_gradient(whole.model, training, 0, sequences)
    for left_out in (0, 3, len(training.units) - 1):
        fewer = replace(training, units=tuple(u for i, u in enumerate(training.units) if i != left_out))
        rest = make_lm()
        private_gradient(rest.model, fewer, 0, sequences)
        a, b = _gradients(whole.model), _gradients(rest.model)
        moved = 4 * float(sum((a[n] - b[n]).double().square().sum() for n in a)) ** 0.5
        assert 0 < moved <= 0.5 * (1 + 1e-4)


def test_neither_units_nor_divisor_depend_on_who_else_there_is(sequences):
    """Adding a user changes no other user's draw or records, and no constant of the mechanism."""
    records = _records(sequences)
    keep = [i for i, user in enumerate(records.users) if user != "user6"]
    fewer = PrivateRecords([records.ids[i] for i in keep], [records.users[i] for i in keep], [5] * len(keep))
    whole = plan_private_training(_mechanism(), KEY, records, NoiseGenerator.PHILOX)
    rest = plan_private_training(_mechanism(), KEY, fewer, NoiseGenerator.PHILOX)
    for step in range(whole.mechanism.steps):
        a = [{records.ids[r] for r in rows} for rows in _cohort(whole, step)]
        b = [{fewer.ids[r] for r in rows} for rows in _cohort(rest, step)]
        others = [ids for ids in a if not any(records.users[int(i[6:])] == "user6" for i in ids)]
        assert sorted(map(sorted, others)) == sorted(map(sorted, b))
    assert whole.mechanism == rest.mechanism


def test_without_an_entity_a_text_sampled_step_lacks_exactly_its_records_contributions(make_lm, sequences):
    """Slots that name it are empty; every other record keeps its coin, its clip and the noise."""
    training = _training(sequences, "user-entity")
    named = [1, 4, 5, 11, 17]
    ids = [training.records.ids[row] for row in named]
    assert [len(unit.rows) for unit in training.units] == [1] * len(sequences)
    assert len({unit.name for unit in training.units}) == len(sequences)
    rest = replace(training, units=tuple(u for u in training.units if u.name not in ids))
    drawn_any = 0
    for step in range(4):
        drawn = {unit.name for unit in training.drawn(step)}
        assert {unit.name for unit in rest.drawn(step)} == drawn - set(ids)
        whole, without = make_lm(), make_lm()
        private_gradient(whole.model, training, step, sequences)
        private_gradient(without.model, rest, step, sequences)
        alone = make_lm()
        only = replace(training, units=tuple(u for u in training.units if u.name in ids))
        noiseless = Mechanism(**{**dict(training.mechanism), "noise_multiplier": 0.0})
        private_gradient(alone.model, replace(only, mechanism=noiseless), step, sequences)
        a, b, c = map(_gradients, (whole.model, without.model, alone.model))
        _assert_same({n: a[n] - b[n] for n in a}, c)
        moved = 4 * float(sum(g.double().square().sum() for g in c.values())) ** 0.5
        assert moved <= 0.5 * len(drawn & set(ids)) * (1 + 1e-4)
        drawn_any += len(drawn & set(ids))
    assert drawn_any > 4


def test_two_records_never_share_a_coin(sequences):
    """Over 400 steps, records of one user and of several: the draws of no two are the same or dependent."""
    training = _training(sequences, "user-entity", steps=400)
    names = [unit.name for unit in training.units]
    drawn = np.zeros((400, len(names)))
    for step in range(400):
        drawn[step, [names.index(unit.name) for unit in training.drawn(step)]] = 1
    assert abs(drawn.mean() - 0.4) < 0.02
    correlation = np.corrcoef(drawn.T) - np.eye(len(names))
    # 5.5 standard errors: by chance once in 2e7 pairs, of which there are under a thousand
    assert np.abs(correlation).max() < 5.5 / 20
    shared = drawn.copy()
    shared[:, 1] = shared[:, 0]
    assert np.abs(np.corrcoef(shared.T) - np.eye(len(names))).max() > 0.99


def test_els_pools_hold_at_most_the_cap_and_group_privacy_exactly_it(sequences):
    records = _records(sequences)
    owner = dict(zip(records.ids, records.users, strict=True))
    for exactly in (False, True):
        training = _training(sequences, "els", exactly=exactly)
        sizes: dict[str, int] = {}
        for unit in training.units:
            user = owner[unit.name.split(" copy ")[0]]
            sizes[user] = sizes.get(user, 0) + 1
        assert max(sizes.values()) == 3
        assert set(sizes.values()) == ({3} if exactly else {1, 2, 3})
        assert len({u.name for u in training.units}) == len(training.units)


def test_every_step_of_uls_takes_at_most_the_group_size_and_a_new_choice(sequences):
    training = _training(sequences, sampler=PoissonSampler(rate=1.0))
    cohorts = [_cohort(training, step) for step in range(6)]
    assert all(0 < len(rows) <= 3 for c in cohorts for rows in c)
    assert len({tuple(c[6]) for c in cohorts}) > 1


RECIPE = Recipe(
    optimizer=Optimizer.ADAM,
    learning_rate=1e-3,
    warmup_steps=3,
    sequence_length=31,
    checkpoint_every=4,
    evaluations=2,
    select=Select.LAST,
)


@pytest.mark.parametrize(
    "change", [{}, {"optimizer": Optimizer.SGD, "momentum": 0.9, "schedule": Schedule.COSINE}], ids=["Adam", "momentum"]
)
def test_a_private_run_interrupted_anywhere_ends_with_bitwise_the_same_weights(make_lm, sequences, tmp_path, change):
    training, recipe = _training(sequences), replace(RECIPE, **change)
    whole = train(make_lm(), sequences, recipe, tmp_path / "whole", private=training)
    assert whole.steps == 12
    # Before, at and after a checkpoint; of the other what the optimizer keeps and the rate are all that differs.
    for stop in (7,) if change else (1, 4, 7):
        done = []

        def interrupt(steps, done=done, stop=stop):
            done.append(steps)
            if sum(done) == stop:
                raise KeyboardInterrupt

        folder = tmp_path / str(stop)
        with pytest.raises(KeyboardInterrupt):
            train(make_lm(), sequences, recipe, folder, private=training, advance=interrupt)
        resumed = train(make_lm(), sequences, recipe, folder, private=training)
        a, b = (load_file(r.folder / "model.safetensors") for r in (resumed, whole))
        assert all(torch.equal(a[name], b[name]) for name in b)


def test_a_resume_with_another_plan_key_or_membership_is_refused(make_lm, sequences, tmp_path):
    training = _training(sequences)
    train(make_lm(), sequences, RECIPE, tmp_path, private=training)
    for other in (
        _training(sequences, noise_multiplier=0.9),
        replace(training, key=seed_key(22)),
        replace(training, units=training.units[1:]),
        replace(training, noise=NoiseGenerator.SECURE),
        None,
    ):
        with refused(by="load_state", naming="step-00000012"):
            train(make_lm(), sequences, RECIPE, tmp_path, private=other)


def test_the_optimizer_sees_the_noised_gradient_only(make_lm, sequences, tmp_path):
    """Adam's second moment after one step is that of the noised gradient."""
    training = _training(sequences, steps=1, sampler=PoissonSampler(rate=1.0))
    lm = make_lm()
    private_gradient(lm.model, training, 0, sequences)
    expected = {name: 0.001 * g.square() for name, g in _gradients(lm.model).items()}
    train(make_lm(), sequences, RECIPE, tmp_path, private=training)
    state = load_file(tmp_path / "resume" / "step-00000001" / "optimizer.safetensors")
    for i, (_, value) in enumerate(expected.items()):
        torch.testing.assert_close(state[f"{i}.exp_avg_sq"], value, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize(
    "change",
    [{"clip": BatchClip(norm=1.0)}, {"divisor": RealisedCohortDivisor()}],
    ids=["batch clip", "realised divisor"],
)
def test_a_plan_that_the_loop_does_not_run_is_refused(sequences, change):
    with refused(by=plan_private_training):
        _training(sequences, **change)


def test_noise_is_half_as_likely_to_help_as_to_hurt(make_lm, sequences):
    """Averaged over many steps at one point, the noised gradient is the noiseless one: noise adds no bias."""
    lm = make_lm()
    training = _training(sequences, "example", sampler=PoissonSampler(rate=1.0), steps=20)
    quiet = replace(training, mechanism=_mechanism("example", sampler=PoissonSampler(rate=1.0), noise_multiplier=0.0))
    private_gradient(lm.model, quiet, 0, sequences)
    truth = torch.cat([g.flatten() for g in _gradients(lm.model).values()]).numpy()
    mean = np.zeros_like(truth)
    for step in range(20):
        private_gradient(lm.model, training, step, sequences)
        mean += torch.cat([g.flatten() for g in _gradients(lm.model).values()]).numpy() / 20
    z = (mean - truth) / (0.1 / 20**0.5)
    assert stats.kstest(z, "norm").pvalue > 1e-6
