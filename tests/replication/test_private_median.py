"""The private median against brute force over neighbours; epsilon of median and training against dp-accounting."""

import math
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.common import DifferentialPrivacyParameters
from typer.testing import CliRunner

from heldin.base.progress import LineReporter
from heldin.defenses.choices import ConcentrationFilter, ConstantDivisor, FlatClip
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.plan_file import write_plan
from heldin.defenses.samplers import FullBatchSampler, PoissonSampler, ShuffledSampler
from heldin.stages.run_config import load_config
from replication.__main__ import app
from replication.private_median import draw, of_config, probabilities, together
from tests.refusals import refused

EPSILON = 0.7


def _brute(counts, at_most):
    weights = []
    for value in range(1, at_most + 1):
        below, above = sum(c < value for c in counts), sum(c > value for c in counts)
        weights.append(math.exp(-EPSILON * abs(below - above) / 2))
    return np.array(weights) / sum(weights)


def test_probabilities_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    for size in (0, 1, 2, 7, 30):
        counts = rng.integers(1, 30, size).tolist()
        np.testing.assert_allclose(probabilities(counts, EPSILON, 24), _brute(counts, 24), rtol=1e-12)


def test_no_user_changes_a_probability_by_more_than_epsilon():
    """For every user of some corpora, removed, and for every count that a new one may have; and some come near."""
    rng, worst = np.random.default_rng(1), 0.0
    for size in (1, 2, 3, 6, 11):
        for _ in range(20):
            counts = rng.integers(1, 14, size).tolist()
            whole = probabilities(counts, EPSILON, 12)
            neighbours = [counts[:i] + counts[i + 1 :] for i in range(size)] + [[*counts, new] for new in range(1, 16)]
            for other in neighbours:
                worst = max(worst, float(np.abs(np.log(whole / probabilities(other, EPSILON, 12))).max()))
    assert 0.6 * EPSILON < worst <= EPSILON * (1 + 1e-9)


def test_the_median_is_near_the_middle_and_drawn_by_its_probability():
    counts = np.random.default_rng(2).geometric(0.1, 2000).tolist()
    chances = probabilities(counts, 0.1, 256)
    middle = float(np.median(counts))
    assert chances[int(middle) - 2 : int(middle) + 1].sum() > 0.999
    at = iter([0.0, 0.3, 0.5, 0.99999999999])
    few = np.array([0.2, 0.2, 0.6])
    assert [draw(few, lambda: next(at)) for _ in range(4)] == [1, 2, 3, 3]
    drawn = np.array([draw(few) for _ in range(4000)])
    assert abs(np.mean(drawn == 3) - 0.6) < 5.5 * math.sqrt(0.24 / 4000)


def _plan(path, **changes):
    fields = {
        "unit": "user",
        "sampled": "user",
        "sampler": PoissonSampler(rate=0.1, population=500),
        "clip": FlatClip(norm=1.0),
        "noise_multiplier": 1.0,
        "steps": 100,
        "delta": 1e-5,
        "divisor": ConstantDivisor(value=50),
        **changes,
    }
    write_plan(Mechanism(**fields), path)
    return path


@pytest.mark.parametrize("spent", [0.1, 1.0])
def test_both_together_are_what_dp_accounting_composes(tmp_path, spent):
    both, delta = together(_plan(tmp_path / "plan.json"), spent)
    training = pld.from_gaussian_mechanism(1.0, sampling_prob=0.1, value_discretization_interval=1e-4)
    response = pld.from_privacy_parameters(DifferentialPrivacyParameters(spent, 0.0), 1e-4)
    alone = training.self_compose(100)
    assert delta == 1e-5
    assert both == pytest.approx(alone.compose(response).get_epsilon_for_delta(1e-5), rel=2e-3)
    # Nothing is free, and a sum of epsilons is a bound.
    assert alone.get_epsilon_for_delta(1e-5) * 1.001 < both < alone.get_epsilon_for_delta(1e-5) + spent


def test_a_plan_without_a_guarantee_is_refused(tmp_path):
    shuffled = {"sampler": ShuffledSampler(population=500, cohort=50), "adjacency": "zero_out"}
    with refused(by=together, naming="no guarantee"):
        together(_plan(tmp_path / "plan.json", **shuffled), 0.1)


def test_a_plan_of_users_and_entities_is_refused(tmp_path):
    """A person's entity is in others' texts, of which the median of a person's records knows nothing."""
    pairs = {"unit": "user-entity", "sampled": "example", "record_selection": "all", "exposed": 1}
    with refused(by=together, naming="no guarantee"):
        together(_plan(tmp_path / "plan.json", **pairs), 0.1)


@pytest.mark.parametrize("epsilon", [-1000.0, 0.0, math.inf, math.nan])
def test_an_epsilon_that_is_none_is_one_line(tmp_path, epsilon):
    with refused(by="_check_epsilon", naming="--epsilon"):
        together(_plan(tmp_path / "plan.json"), epsilon)


def test_a_filter_has_another_relation_of_neighbours(tmp_path):
    filtered = {
        "sampler": FullBatchSampler(population=500),
        "adjacency": "replace",
        "clip": ConcentrationFilter(tau=1.0, above_epsilon=1.0),
    }
    with refused(by=together, naming="add/remove"):
        together(_plan(tmp_path / "plan.json", **filtered), 0.1)


@pytest.mark.parametrize("change", ["corpus.users.max_users=50", "split.audit_pool=40"])
def test_a_config_in_which_one_user_displaces_another_is_refused(change):
    """Then a new user takes one count away and adds one: the median may change twice as much."""
    with refused(by=of_config, naming="looks across users"):
        of_config(load_config(Path("configs/built-in.yaml"), [change]), 0.1, 20, LineReporter(lambda line: None))


def test_a_release_is_kept_and_not_made_twice(tmp_path):
    out = tmp_path / "median.json"
    arguments = ["private-median", "configs/built-in.yaml", "--out", str(out), "--epsilon", "50"]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    kept = out.read_text(encoding="utf-8")
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code != 0
    assert out.read_text(encoding="utf-8") == kept
