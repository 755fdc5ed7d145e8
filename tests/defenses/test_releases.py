"""Several releases about the same people: one epsilon, against closed forms and a slow twin."""

import itertools
import math
import time

import pytest

from heldin.base.errors import InputError
from heldin.defenses.accounting.closed_forms import gaussian_delta, gaussian_epsilon
from heldin.defenses.accounting.events import PoissonGaussian
from heldin.defenses.accounting.guarantees import composed_epsilon, epsilon
from heldin.defenses.accounting.pure import check_pure
from heldin.defenses.choices import ConcentrationFilter, TwoLevel
from heldin.defenses.releases import PlannedRelease, compose_releases, users_epsilon
from heldin.defenses.samplers import FullBatchSampler, PoissonSampler
from heldin.words.guarantee import ReleasesText
from tests.made_mechanisms import els, example, shuffled, uls
from tests.oracles.releases import bracket
from tests.refusals import lacks, refused

DELTA = 1e-6
MIXED = ((1.2, 0.1, 2), (2.0, 0.3, 3))


def of(*mechanisms):
    return [PlannedRelease(f"plan {i}", its) for i, its in enumerate(mechanisms)]


def runs(plans):
    return [(PoissonGaussian(noise, rate), steps) for noise, rate, steps in plans]


def text_sampling(**changes):
    fields = {"unit": "user-entity", "sampled": "example", "record_selection": "all", "group_size": 1, "exposed": 4}
    return uls(**{**fields, "noise_multiplier": 4.0} | changes)


@pytest.mark.parametrize("delta", [1e-5, 1e-10])
@pytest.mark.parametrize("plans", [((0.7, 1),), ((5.0, 30), (3.0, 7)), ((40.0, 500), (25.0, 2), (80.0, 9000))])
def test_gaussians_compose_to_the_gaussian_of_the_closed_form(plans, delta):
    """Full batches: one Gaussian with mu^2 = sum T / s^2, by whole and by tilted distributions."""
    exact = gaussian_epsilon(math.sqrt(sum(steps / noise**2 for noise, steps in plans)), delta)
    found = composed_epsilon([(PoissonGaussian(noise, 1.0), steps) for noise, steps in plans], delta)
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 2e-4)


def test_different_plans_lie_in_the_bracket_of_the_slow_twin_and_a_dropped_plan_does_not():
    lower, upper = bracket(MIXED, DELTA)
    assert upper - lower < 0.01
    assert lower <= composed_epsilon(runs(MIXED), DELTA) <= upper
    # Wrong answers: a plan or a step too few, and the rule of the larger one.
    for wrong in (MIXED[:1], MIXED[1:], (MIXED[0], (*MIXED[1][:2], 2))):
        assert composed_epsilon(runs(wrong), DELTA) < lower


def test_equal_plans_are_one_longer_plan_to_the_last_digit():
    whole, part = uls(steps=120), uls(steps=40)
    assert compose_releases(of(whole)).epsilon == whole.epsilon()
    assert compose_releases(of(part, part, part)).epsilon == whole.epsilon()
    assert compose_releases([PlannedRelease("week", part, 3)]).epsilon == whole.epsilon()
    # And nearly equal plans are nearly that, which another way of composing gives.
    near = uls(steps=40, noise_multiplier=part.noise_multiplier * (1 + 1e-9))
    assert compose_releases(of(part, near, part)).epsilon == pytest.approx(whole.epsilon(), rel=2e-4)


def test_order_does_not_matter_more_costs_more_and_the_sum_is_a_limit():
    plans = [uls(steps=60), els(steps=40), uls(steps=30, noise_multiplier=2.0)]
    together = compose_releases(of(*plans))
    assert compose_releases(of(*plans[::-1])).epsilon == together.epsilon
    spent = [compose_releases(of(*plans[:k])).epsilon for k in (1, 2, 3)]
    assert spent == sorted(set(spent))
    assert max(its.epsilon() for its in plans) < together.epsilon < together.sum_epsilon
    assert together.sum_epsilon == pytest.approx(sum(its.epsilon() for its in plans))
    assert together.sum_delta == pytest.approx(3 * DELTA)
    # The simplest rule itself holds, at the sum of the deltas.
    assert compose_releases(of(*plans), together.sum_delta).epsilon < together.sum_epsilon


def test_a_year_of_weeks_at_epsilon_two_has_a_number_in_seconds():
    week = uls().calibrated(2.0)
    started = time.process_time()
    year = compose_releases([PlannedRelease("week", week, 52)])
    assert (year.releases, round(year.sum_epsilon)) == (52, 104)
    assert year.epsilon == epsilon(week.user_event, 52_000, DELTA)
    assert 18.4 < year.epsilon < 18.6
    assert compose_releases([PlannedRelease("week", week, 1000)]).epsilon > 100.0
    assert time.process_time() - started < 20.0


def test_plans_of_very_different_noise_have_a_number():
    loud, quiet = uls(steps=40, noise_multiplier=3.0), uls(steps=40, noise_multiplier=0.001)
    together = compose_releases(of(loud, quiet))
    # Each number is exact to 1e-4 of itself.
    assert quiet.epsilon() * (1 - 1e-4) <= together.epsilon <= together.sum_epsilon


@pytest.mark.parametrize(
    ("plans", "said"),
    [
        ([uls(), example()], ("plan 1", "example", "user")),
        ([uls(), shuffled()], ("plan 1",)),
        ([uls(noise_multiplier=0.0)], ("plan 0",)),
        ([uls(), uls(delta=1e-5)], ("--delta", "1e-06", "1e-05")),
        ([uls(), text_sampling()], ("plan 1", "user-entity", "user")),
        ([text_sampling(), text_sampling(exposed=1)], ("plan 1", 1, 4)),
        (
            [text_sampling(), text_sampling(exposed=None, entity_cap=4, adjacency="zero_out")],
            ("plan 1", "zero-out", "add/remove"),
        ),
        (
            [
                uls(
                    adjacency="replace",
                    sampler=FullBatchSampler(population=64),
                    clip=ConcentrationFilter(tau=0.1, above_epsilon=1.0),
                    noise_multiplier=30.0,
                )
            ],
            ("plan 0",),
        ),
        (
            [
                uls(
                    unit="user-entity",
                    record_selection="all",
                    noise_multiplier=20.0,
                    two_level=TwoLevel(entity_rate=0.5, extended_rate=1.0, rule="any", holders=2),
                )
            ],
            ("plan 0",),
        ),
        ([], ()),
    ],
)
def test_what_has_no_epsilon_together_is_refused_in_one_line(plans, said):
    with pytest.raises(InputError) as raised:
        compose_releases(of(*plans))
    assert lacks(str(raised.value), *said) == []
    assert "\n" not in str(raised.value)


def test_a_given_delta_settles_plans_of_different_deltas():
    plans = of(uls(), uls(delta=1e-5))
    assert compose_releases(plans, 1e-6).delta == 1e-6
    assert compose_releases(plans, 1e-6).epsilon > compose_releases(plans, 1e-5).epsilon


def test_persons_of_several_records_and_pairs_under_caps_compose():
    rate = PoissonSampler.of(population=1024, cohort=16).rate
    for its, members in (
        (text_sampling(steps=50), 4),
        (text_sampling(steps=50, exposed=None, group_size=3, entity_cap=5, adjacency="zero_out"), 8),
    ):
        exact = epsilon(PoissonGaussian(4.0, rate, members), 100, DELTA)
        assert compose_releases(of(its, its)).epsilon == exact


def test_conditions_say_that_plans_are_fixed_beforehand_and_keep_those_of_each_plan():
    statement = compose_releases(of(example(), example())).statement
    conditions = statement.values["conditions"]
    assert conditions[0].states(ReleasesText.FIXED_BEFOREHAND)
    assert conditions[1].states(ReleasesText.AS_PLANNED)
    assert set(example().guarantee().conditions) <= set(conditions)
    assert len(conditions) == len(set(conditions))


def test_users_of_a_sweep_get_the_same_number():
    plans = [uls(steps=60), els(steps=40)]
    assert users_epsilon(plans, DELTA) == compose_releases(of(*plans)).epsilon


@pytest.mark.slow
def test_ten_thousand_releases_and_fifty_two_different_ones():
    week = uls().calibrated(2.0)
    many = compose_releases([PlannedRelease("week", week, 10_000)])
    assert many.epsilon == epsilon(week.user_event, 10_000_000, DELTA)
    different = [uls(sampler=PoissonSampler.of(population=1024 + i, cohort=16)) for i in range(52)]
    year = compose_releases(of(*different))
    fewest, most = (compose_releases([PlannedRelease("all", different[i], 52)]).epsilon for i in (51, 0))
    assert fewest < year.epsilon < most


def _delta_of_all(mu, pure, epsilon):
    """delta of N(mu, 1) against N(0, 1) with randomised responses, by every outcome of these one by one."""
    total = 0.0
    for signs in itertools.product((1, -1), repeat=len(pure)):
        chance = math.prod(1 / (1 + math.exp(-sign * spent)) for sign, spent in zip(signs, pure, strict=True))
        total += chance * gaussian_delta(mu, epsilon - sum(s * spent for s, spent in zip(signs, pure, strict=True)))
    return total


@pytest.mark.parametrize("delta", [1e-5, 1e-10])
@pytest.mark.parametrize("pure", [(0.3,), (2.5,), (0.1, 0.1, 0.1), (0.2, 0.7, 0.2, 1.1)])
def test_pure_releases_beside_gaussians_are_what_every_outcome_gives(pure, delta):
    mu = math.sqrt(30 / 5.0**2 + 7 / 3.0**2)
    trainings = [(PoissonGaussian(5.0, 1.0), 30), (PoissonGaussian(3.0, 1.0), 7)]
    found = composed_epsilon(trainings, delta, pure)
    assert _delta_of_all(mu, pure, found) <= delta * (1 + 1e-9)
    assert _delta_of_all(mu, pure, found * (1 - 5e-4)) > delta
    # Wrong answers: without the last release, without any, and the simplest rule.
    assert composed_epsilon(trainings, delta, pure[:-1]) < found
    assert composed_epsilon(trainings, delta) < found < composed_epsilon(trainings, delta) + sum(pure)


def test_pure_releases_that_outweigh_the_trainings_cost_about_their_sum():
    """Below that the trainings are asked for delta at negative epsilon."""
    trainings = [(PoissonGaussian(200.0, 0.01), 1)]
    found = composed_epsilon(trainings, DELTA, [1.0, 1.0])
    assert 1.999 < found <= 2.0 + composed_epsilon(trainings, DELTA)
    # Of many small ones not all have their largest loss: that needs the negative side.
    many = composed_epsilon(trainings, 1e-2, [0.1] * 40)
    exact = [e for e in (many, many * 0.999) if _binomial_delta(0.1, 40, e) <= 1e-2]
    assert exact == [many]
    assert many < 2.5


def _binomial_delta(spent, count, epsilon):
    """delta of equal randomised responses by themselves."""
    p = 1 / (1 + math.exp(-spent))
    law = [(math.comb(count, k) * p**k * (1 - p) ** (count - k), (2 * k - count) * spent) for k in range(count + 1)]
    return sum(chance * max(0.0, -math.expm1(epsilon - loss)) for chance, loss in law)


def test_pure_releases_are_for_users_under_add_remove_and_count_among_the_releases():
    together = compose_releases(of(uls(steps=40)), pure=[0.1, 0.2])
    assert (together.releases, together.pure) == (3, (0.1, 0.2))
    assert together.sum_epsilon == pytest.approx(uls(steps=40).epsilon() + 0.3)
    assert together.statement.values["conditions"][2].states(ReleasesText.PURE)
    with refused(by=compose_releases, naming=("example",)):
        compose_releases(of(example()), pure=[0.1])
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with refused(by=check_pure, naming=(wrong,)):
            compose_releases(of(uls()), pure=[wrong])
    with refused(by="_losses"):
        compose_releases(of(uls()), pure=[0.001 * i for i in range(1, 16)])
