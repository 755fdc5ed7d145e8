"""Two-level sampling and model differences against slow twins; the counterexample to the paper's claim."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from heldin.base.coins import fair_coin, keyed_uniform, seed_key
from heldin.bounds.trainings import certify
from heldin.bounds.verdict import stated_claim
from heldin.corpus.entities.incidence import Incidence
from heldin.defenses.choices import ConstantDivisor, FlatClip, LocalUpdates, NoiseGenerator, TwoLevel, WeightCaps
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.samplers import PoissonSampler
from heldin.finetune.batches import collate
from heldin.finetune.local_updates import clipped_difference_sum
from heldin.finetune.loop import train
from heldin.finetune.private import private_gradient
from heldin.finetune.recipe import Optimizer, Recipe, Schedule, Select
from heldin.finetune.sampled_units import LocalWork
from heldin.finetune.units import PrivateRecords, plan_private_training, record_weights, usable
from tests.documents import record_losses, tokens
from tests.mean_model import MeanModel
from tests.oracles.gap_coins import coins
from tests.oracles.private_step import naive_private_gradient
from tests.refusals import refused

KEY = seed_key(33)
NAMES = ("ann", "bob", "cy", "dee", "eve")
NAMED = [{0, 1}, set(), {2}, {0}, {1, 2, 3}, set(), {4}, {0, 4}, set(), {3}, {2, 3}, set()]


def incidence(named, names=NAMES):
    starts = np.cumsum([0, *map(len, named)]).astype(np.int64)
    return Incidence(starts, np.array([e for its in named for e in sorted(its)], dtype=np.int64), len(names), names)


def mechanism(two_level=None, **changes):
    fields = {
        "unit": "user-entity",
        "sampled": "user",
        "sampler": PoissonSampler(rate=0.6),
        "clip": FlatClip(norm=0.5),
        "noise_multiplier": 0.8,
        "steps": 6,
        "delta": 1e-4,
        "divisor": ConstantDivisor(value=3),
        "record_selection": "all",
        "two_level": TwoLevel(
            **{"entity_rate": 0.5, "extended_rate": 0.7, "rule": "all", "holders": 3, **(two_level or {})}
        ),
    }
    return Mechanism(**{**fields, **changes})


def training_of(sequences, named=None, **changes):
    named = [NAMED[i % len(NAMED)] for i in range(len(sequences))] if named is None else named
    records = PrivateRecords(
        [f"record {i}" for i in range(len(sequences))],
        [f"user {i % 5}" for i in range(len(sequences))],
        [len(s) for s in sequences],
        named=incidence(named),
    )
    return plan_private_training(mechanism(**changes), KEY, records, NoiseGenerator.PHILOX)


@pytest.mark.parametrize("rule", ["all", "any"])
def test_usable_records_are_those_of_the_slow_twin(rule):
    two_level = mechanism({"rule": rule}).two_level
    ids = [f"record {i}" for i in range(len(NAMED))]
    uses = 0
    for step in range(60):
        drawn = {e for e, name in enumerate(NAMES) if keyed_uniform(KEY, f"entities {step}", name) < 0.5}
        expected = {}
        for row, its in enumerate(NAMED):
            if its:
                if its <= drawn or (rule == "any" and its & drawn):
                    expected[row] = sorted(its & drawn)
            elif keyed_uniform(KEY, f"extended {step}", ids[row]) < 0.7:
                expected[row] = []
        found = usable(two_level, incidence(NAMED), range(len(NAMED)), ids, KEY, step)
        assert found == expected
        # One entity has one coin, whoever is asked about: part of the rows gives part of the answer.
        part = usable(two_level, incidence(NAMED), [3, 7, 9], ids, KEY, step)
        assert part == {row: its for row, its in expected.items() if row in (3, 7, 9)}
        uses += len(found)
    assert 60 < uses < 60 * len(NAMED)


def test_a_record_counts_as_many_drawn_entities_as_it_names_or_their_weights():
    assert record_weights([[0, 1], [], [4]], None) == [2.0, 1.0, 1.0]
    weights = np.array([0.25, 1.0, 1.0, 1.0, 0.5])
    assert record_weights([[0, 1], [], [4]], weights) == [1.25, 1.0, 0.5]


def test_a_two_level_step_equals_the_oracle(make_lm, sequences):
    training, lm = training_of(sequences), make_lm()
    changed = 0
    for step in (0, 1, 2):
        expected = naive_private_gradient(make_lm(), _with_something(training, step), step, sequences)
        private_gradient(lm.model, training, step, sequences)
        for name, p in lm.model.named_parameters():
            torch.testing.assert_close(p.grad, expected[name], atol=2e-6, rtol=2e-4)
        changed += sum(set(training.rows(unit, step)) != set(unit.rows) for unit in training.drawn(step))
    assert changed


def _with_something(training, step):
    """Without units that have nothing usable, which contribute zero: the oracle divides by the number of records."""
    return replace(training, units=tuple(unit for unit in training.units if training.rows(unit, step)))


def test_without_an_entity_a_step_changes_only_its_author_and_holders_and_only_if_its_coin_fell(make_lm, sequences):
    """Rule all: the theorem of two-level sampling, through the real units."""
    training, entity = training_of(sequences), 2
    for step in range(6):
        drawn = keyed_uniform(KEY, f"entities {step}", NAMES[entity]) < 0.5
        for unit in training.drawn(step):
            rows = training.rows(unit, step)
            without = tuple(row for row in unit.rows if entity not in NAMED[row % len(NAMED)])
            fewer = training.rows(replace(unit, rows=without), step)
            assert set(fewer) <= set(rows)
            if not drawn:
                assert fewer == rows


def test_the_choice_of_records_is_among_usable_ones(sequences):
    training = training_of(sequences, record_selection="random", group_size=2)
    for step in range(6):
        for unit in training.units:
            rows = training.rows(unit, step)
            assert set(rows) <= set(training.usable(unit, step))
            assert len(rows) == min(2, len(training.usable(unit, step)))


def slow_differences(lm, people, local, clip_norm):
    """A copy of the model and an optimizer of torch for each user."""
    total = None
    for work in people:
        model = copy.deepcopy(lm.model).eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=local.learning_rate)
        for _ in range(local.epochs):
            for at in range(0, len(work.sequences), local.batch_size):
                optimizer.zero_grad()
                part = slice(at, at + local.batch_size)
                loss = sum(
                    weight * record_losses(model, *collate([record], model.device).tensors[:2])[0]
                    for record, weight in zip(work.sequences[part], work.weights[part], strict=True)
                )
                (loss / local.batch_size).backward()
                optimizer.step()
        moved = [a.detach() - b.detach() for a, b in zip(lm.model.parameters(), model.parameters(), strict=True)]
        norm = float(sum(m.double().square().sum() for m in moved)) ** 0.5
        clipped = [m * work.weight * min(1.0, clip_norm / norm) for m in moved]
        total = clipped if total is None else [a + b for a, b in zip(total, clipped, strict=True)]
    return dict(zip(dict(lm.model.named_parameters()), total, strict=True))


@pytest.mark.parametrize("clip_norm", [0.05, 1e6])
def test_model_differences_are_those_of_the_slow_twin(make_lm, sequences, clip_norm):
    local = LocalUpdates(learning_rate=0.3, batch_size=2, epochs=2)
    people = [
        LocalWork(sequences[:3], [1.0, 2.0, 0.5], 0.5),
        LocalWork(sequences[3:4], [1.0]),
        LocalWork([], []),
        LocalWork(sequences[4:9], [1.0] * 5),
    ]
    lm = make_lm()
    before = {name: p.detach().clone() for name, p in lm.model.named_parameters()}
    lm.model.train()
    total, tally = clipped_difference_sum(lm.model, people, local, clip_norm)
    assert lm.model.training
    expected = slow_differences(make_lm(), [work for work in people if work.sequences], local, clip_norm)
    for name, tensor in expected.items():
        torch.testing.assert_close(total[name], tensor, atol=2e-6, rtol=2e-4)
        assert torch.equal(dict(lm.model.named_parameters())[name], before[name])
    assert tally[1] == 3
    # Several steps are no one step, and the later ones start where the earlier ended.
    once, _ = clipped_difference_sum(lm.model, people, LocalUpdates(learning_rate=0.3, batch_size=64), 1e6)
    assert any(not torch.allclose(once[name], expected[name], atol=1e-4) for name in expected)


def test_local_steps_go_on_from_each_other_in_lower_precision_too(make_lm, sequences):
    """Autocast keeps copies of the weights, which a step that changes them in place must not go on using."""
    local = LocalUpdates(learning_rate=0.5, batch_size=1)
    work = [LocalWork(sequences[:4], [1.0] * 4)]
    exact, _ = clipped_difference_sum(make_lm().model, work, local, 1e9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = clipped_difference_sum(make_lm().model, work, local, 1e9)
    apart = sum(float((found[n] - exact[n]).square().sum()) for n in exact) ** 0.5
    assert apart < 0.1 * sum(float(exact[n].square().sum()) for n in exact) ** 0.5


def test_one_local_step_is_the_gradient_times_the_learning_rate(make_lm, sequences):
    lm = make_lm()
    local = LocalUpdates(learning_rate=0.25, batch_size=3)
    total, _ = clipped_difference_sum(lm.model, [LocalWork(sequences[:3], [1.0] * 3)], local, 1e9)
    record_losses(lm.model, *collate(sequences[:3], lm.model.device).tensors[:2]).mean().backward()
    for name, p in lm.model.named_parameters():
        torch.testing.assert_close(total[name], 0.25 * p.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("clip_norm", [6.9e-7, 1e-3, 1.0])
def test_a_user_whose_model_went_far_off_contributes_at_most_the_clip_norm(make_lm, sequences, monkeypatch, clip_norm):
    """A factor that float32 holds with a few digits could be rounded up by a quarter."""

    def far_off(model, parameters, work, local):
        with torch.no_grad():
            parameters[0].view(-1)[:10] += 1e38
        return 1.0

    monkeypatch.setattr("heldin.finetune.local_updates._train", far_off)
    work, local = LocalWork(sequences[:2], [1.0] * 2), LocalUpdates(learning_rate=0.1)
    total, _ = clipped_difference_sum(make_lm().model, [work], local, clip_norm)
    contributed = math.sqrt(sum(float(its.double().square().sum()) for its in total.values()))
    assert contributed <= clip_norm * (1 + 1e-6)


def test_a_user_whose_model_is_not_finite_contributes_nothing(make_lm, sequences):
    lm = make_lm()
    wild = LocalUpdates(learning_rate=1e30, batch_size=1, epochs=3)
    total, tally = clipped_difference_sum(lm.model, [LocalWork(sequences[:4], [1.0] * 4)], wild, 0.5)
    assert tally.tolist() == [0.0, 0.0, -0.5]
    assert all(not tensor.any() for tensor in total.values())


@pytest.mark.parametrize("unit", ["user", "user-entity"])
def test_one_user_moves_the_sum_of_differences_by_at_most_the_clip_norm(make_lm, sequences, unit):
    changes = {"local": LocalUpdates(learning_rate=5.0, batch_size=2), "noise_multiplier": 0.0}
    changes |= {"sampler": PoissonSampler(rate=1.0)}
    if unit == "user":
        changes |= {"unit": "user", "two_level": None, "record_selection": "random", "group_size": 4}
    training = (
        training_of(sequences, two_level={"extended_rate": 1.0, "entity_rate": 1.0}, **changes)
        if unit == "user-entity"
        else _dp_fedavg(sequences, **changes)
    )
    whole = _gradient(make_lm(), training, sequences)
    for left_out in range(len(training.units)):
        fewer = replace(training, units=tuple(u for i, u in enumerate(training.units) if i != left_out))
        rest = _gradient(make_lm(), fewer, sequences)
        moved = 3 * float(sum((whole[n] - rest[n]).double().square().sum() for n in whole)) ** 0.5
        assert 0 < moved <= 0.5 * (1 + 1e-4)


def _dp_fedavg(sequences, **changes):
    records = PrivateRecords(
        [f"record {i}" for i in range(len(sequences))],
        [f"user {i % 5}" for i in range(len(sequences))],
        [len(s) for s in sequences],
    )
    made = Mechanism(**{**dict(mechanism()), **changes})
    return plan_private_training(made, KEY, records, NoiseGenerator.PHILOX)


def _gradient(lm, training, sequences):
    private_gradient(lm.model, training, 0, sequences)
    return {name: p.grad.clone() for name, p in lm.model.named_parameters()}


def test_noise_is_added_once_to_the_sum_of_differences(make_lm, sequences):
    changes = {"local": LocalUpdates(learning_rate=0.2), "unit": "user", "two_level": None, "record_selection": "all"}
    noised = _gradient(make_lm(), _dp_fedavg(sequences, **changes), sequences)
    without = _gradient(make_lm(), _dp_fedavg(sequences, **{**changes, "noise_multiplier": 0.0}), sequences)
    noise = torch.cat([(noised[n] - without[n]).flatten() for n in noised]).numpy() * 3 / (0.8 * 0.5)
    assert abs(noise.std() - 1.0) < 0.03
    assert abs(noise.mean()) < 0.03


def test_an_epsilon_for_all_other_holders_is_refused_where_they_are_more_than_stated(sequences):
    """Not so under plain Poisson sampling, whose epsilon is of one user: this one is of all who may name an entity."""

    def planned(population, holders):
        sampler = PoissonSampler.of(population, 2)
        return training_of(sequences, two_level={"holders": holders}, sampler=sampler)

    with refused(by=plan_private_training, naming=(5, 4, 3)):
        planned(4, 3)
    assert len(planned(5, 4).units) == len(planned(4, 2).units) == 5
    # The stated epsilon is false of an entity whom all the others name.
    stated = planned(4, 2).mechanism
    assert stated.epsilon_at(4) > 1.2 * stated.epsilon_at(3)


@pytest.mark.parametrize(
    ("server", "moved"),
    [
        ({"schedule": Schedule.CONSTANT}, {10: 10.0, 100: 100.0}),
        # What the server's step is not, with a rate of 1 at its peak: rates that decay, and momentum.
        ({}, {10: 6.0}),
        ({"schedule": Schedule.CONSTANT, "momentum": 0.9}, {10: 41.4}),
    ],
    ids=["constant", "linear decay", "momentum"],
)
def test_with_a_constant_server_rate_of_1_a_round_moves_the_model_by_the_average(
    make_lm, sequences, tmp_path, monkeypatch, server, moved
):
    def ones(model, people, local, clip_norm):
        """Everybody's model moves by 1 in every coordinate; what is summed is minus that."""
        total = {name: torch.full_like(p, -float(len(people))) for name, p in model.named_parameters()}
        return total, torch.tensor([0.0, len(people), 0.0], dtype=torch.float64)

    monkeypatch.setattr("heldin.finetune.private.clipped_difference_sum", ones)
    fields = {"unit": "user", "two_level": None, "noise_multiplier": 0.0, "local": LocalUpdates(learning_rate=0.1)}
    for rounds, expected in moved.items():
        everybody = {"sampler": PoissonSampler(rate=1.0), "divisor": ConstantDivisor(value=5), "steps": rounds}
        recipe = Recipe(
            optimizer=Optimizer.SGD, learning_rate=1.0, sequence_length=31, evaluations=1, select=Select.LAST, **server
        )
        lm, before = make_lm(), make_lm().model.state_dict()
        train(lm, sequences, recipe, tmp_path / str(rounds), private=_dp_fedavg(sequences, **fields, **everybody))
        for name, p in lm.model.named_parameters():
            torch.testing.assert_close(p - before[name], torch.full_like(p, expected), atol=0.05, rtol=1e-4)


def test_weights_count_the_records_of_users_and_entities(make_lm, sequences):
    local = LocalUpdates(learning_rate=0.1)
    caps = {"weight_caps": WeightCaps(user=20, entity=4)}
    training = training_of(sequences, two_level=caps, local=local)
    unit = training.units[0]
    work = next(work for step in range(9) if (work := training.local_work(unit, step, sequences)).sequences)
    assert work.weight == len(unit.rows) / 20
    counts = np.bincount([e for i in range(len(sequences)) for e in NAMED[i % len(NAMED)]], minlength=5)
    assert training._entity_weights.tolist() == np.minimum(counts / 4, 1).tolist()


def test_what_cannot_be_trained_is_refused(sequences):
    records = PrivateRecords(["a", "b"], ["u", "v"], [3, 3])
    with refused(by=plan_private_training):
        plan_private_training(mechanism(), KEY, records, NoiseGenerator.PHILOX)


def counterexample(key, *, entity, rule, cohort=50, users=946, steps=50):
    """The sum of the noised updates of one training (docs/theory.md#claims-of-user-entity-dp).

    Every user has a record that names nobody and pulls one way, and, if the entity is there, one that names it and
    pulls the other way with more force.
    """
    pulls = [1000.0, -3000.0] if entity else [1000.0]
    table = np.array([[x] for _ in range(users) for x in pulls])
    owners = [f"user {u}" for u in range(users) for _ in pulls]
    named = [{0} if x < 0 else set() for _ in range(users) for x in pulls]
    sums = []
    made = mechanism(
        {"extended_rate": 1.0, "rule": rule, "holders": users},
        sampler=PoissonSampler.of(users, cohort),
        clip=FlatClip(norm=1.0),
        noise_multiplier=2.0 * (cohort + 1),
        steps=steps,
        delta=1e-5,
        divisor=ConstantDivisor(value=1),
    )
    records = PrivateRecords(
        [f"record {i}" for i in range(len(table))], owners, [1] * len(table), named=incidence(named, ("e",))
    )
    training = plan_private_training(made, key, records, NoiseGenerator.PHILOX, micro_records=2 * users)
    training = replace(training, watch=lambda _, gradients: sums.append(float(gradients["theta"])))
    model = MeanModel(table)
    for step in range(steps):
        private_gradient(model, training, step, tokens([i, 0] for i in range(len(table))))
    return sum(sums), made


def test_one_step_of_the_counterexample_is_what_theory_says():
    """Without the entity everybody pulls one way; with it everybody whose entity coin fell pulls the other way."""
    sums = {entity: [] for entity in (False, True)}
    for entity in sums:
        for number in range(12):
            total, made = counterexample(seed_key(number), entity=entity, rule="all", users=60, cohort=6, steps=1)
            cohort = sum(coins(0.1, seed_key(number), f"user {u}", 1)[0] for u in range(60))
            drawn = keyed_uniform(seed_key(number), "entities 0", "e") < 0.5
            sums[entity].append((total, -cohort if not (entity and drawn) else cohort))
    noise = np.array([total - expected for its in sums.values() for total, expected in its]) / (2.0 * 7)
    assert abs(noise.mean()) < 5 / np.sqrt(noise.size)
    assert 0.5 < noise.std() < 1.6
    # The same noise under one key with the entity and without it: what differs is the cohort, twice.
    differ = [a[0] - b[0] for a, b in zip(sums[True], sums[False], strict=True)]
    np.testing.assert_allclose(differ, [a[1] - b[1] for a, b in zip(sums[True], sums[False], strict=True)], atol=1e-3)
    assert made.guarantee().exposure.counted == "holders"


@pytest.mark.long
@pytest.mark.slow
def test_the_papers_claim_is_violated_by_its_own_algorithm_and_the_strict_bound_is_not():
    """Independent trainings, half of them with the entity, at a threshold that was fixed beforehand."""
    member = np.array([fair_coin(KEY, "the entity", f"training {i}") for i in range(80)])
    sums = np.array([counterexample(seed_key(i), entity=bool(its), rule="all")[0] for i, its in enumerate(member)])
    _, made = counterexample(seed_key(0), entity=True, rule="all", steps=1)
    strict = Mechanism(**{**dict(made), "steps": 50}).guarantee().epsilon
    assert 25.9 < strict < 26.0
    claims = [stated_claim(0.52, 1e-5), stated_claim(strict, 1e-5)]
    found = certify(sums, member, threshold=-1250.0, delta=1e-5, claims=claims)
    outcomes = {v.claim: (v.outcome, v.standing) for v in found.judgement.verdicts}
    # 0.94 and 0.042 in theory: not to violate the claim, 15 of 40 trainings would have to fall on the other side.
    assert outcomes[claims[0].label] == ("contradicted", "certified")
    assert outcomes[claims[1].label][0] != "contradicted"
    assert 1.0 < found.epsilon < strict
