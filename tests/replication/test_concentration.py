"""tau over C: where it is known, against the filter itself, its interval, and on a corpus."""

import json

import numpy as np
import pytest
import torch
import yaml
from scipy import stats

from heldin.finetune.filtered import concentration_threshold, neighbours
from heldin.finetune.gradient_norms import gradient_norms
from replication import concentration
from replication.concentration import concentration_of, distances_of, needed, user_gradients
from replication.effective_noise import break_even_concentration
from tests.conftest import SMALL
from tests.documents import tokens
from tests.refusals import names, refused

RIGHT = 2**0.5


def made(rng, users, common, dimension=400):
    """Gradients of norm 1 whose shared part has this squared norm: distances are sqrt(2 (1 - common)), nearly."""
    own = rng.normal(size=(users, dimension))
    own[:, 0] = 0.0
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    return torch.tensor(np.sqrt(common) * np.eye(dimension)[0] + np.sqrt(1 - common) * own, dtype=torch.float32)


@pytest.mark.parametrize("common", [0.0, 0.5, 0.995])
def test_it_is_right_where_it_is_known(common):
    found = concentration_of(*distances_of(3.0 * made(np.random.default_rng(1), 80, common)), 4)
    assert found.clip_norm == pytest.approx(3.0, rel=1e-4)
    assert found.ratio == pytest.approx(RIGHT * (1 - common) ** 0.5, rel=0.1)
    assert found.lower <= found.ratio <= found.upper
    # "around 1" is half of the squared norm in common: neither of the others passes for it.
    assert (0.9 < found.ratio < 1.1) == (common == 0.5)
    of_norm = concentration_of(*distances_of(3.0 * made(np.random.default_rng(1), 80, common)), 4, clip_norm=1.0)
    assert of_norm.ratio == pytest.approx(3.0 * found.ratio, rel=1e-4)


def test_it_is_the_tau_at_which_the_filter_goes_on(monkeypatch):
    """Of many users: each is within any tau of itself, which the score counts and the quantile does not."""
    monkeypatch.setattr(concentration, "RESAMPLES", 10)
    rng = np.random.default_rng(2)
    gradients = torch.tensor(rng.normal(size=(400, 6)) * rng.lognormal(size=(400, 1)), dtype=torch.float32)
    tau = concentration_of(*distances_of(gradients), 1).tau

    def score(at):
        return float(neighbours(gradients, 0, at).sum()) / 400

    assert score(1.001 * tau) >= concentration_threshold(400)
    assert score(0.98 * tau) < concentration_threshold(400)
    # The median distance would not do.
    distances = distances_of(gradients)[0]
    assert score(np.median(distances)) < 0.6 * 400


def test_the_interval_covers_and_says_something(monkeypatch):
    """Users' norms differ, so users decide: an interval of independent pairs would be far too short."""
    monkeypatch.setattr(concentration, "RESAMPLES", 200)
    distances, norms = distances_of(torch.tensor(_people(np.random.default_rng(3), 1500)))
    truth = np.quantile(distances[np.triu_indices(1500, k=1)], 0.8) / np.median(norms)
    trials, missed, narrow = 120, 0, 0
    for seed in range(trials):
        found = concentration_of(*distances_of(torch.tensor(_people(np.random.default_rng(100 + seed), 60))), 1)
        missed += not found.lower <= truth <= found.upper
        # Of 1,770 pairs as if they were independent: the width that a wrong interval would have.
        half = (found.upper - found.lower) / 2 * (2 / 59) ** 0.5
        narrow += not found.ratio - half <= truth <= found.ratio + half
    most = stats.binom.ppf(1 - 1e-6, trials, 0.05)
    assert missed <= most
    assert narrow > most


def _people(rng, users):
    return rng.normal(size=(users, 5)) * rng.lognormal(sigma=0.5, size=(users, 1))


def test_few_users_and_gradients_of_zero_are_refused():
    with refused(by=concentration_of, naming="9"):
        concentration_of(*distances_of(torch.ones(9, 2)), 1)
    with refused(by=concentration_of):
        concentration_of(*distances_of(torch.zeros(20, 2)), 1)


def test_what_the_filter_needs_does_not_depend_on_the_number_of_users():
    assert needed() == pytest.approx(0.0396, abs=5e-5)
    assert break_even_concentration(300, 300, 1000, 3.0, 1e-5) == pytest.approx(needed(), rel=1e-6)


def test_gradients_are_those_of_the_trainer(make_lm):
    lm = make_lm()
    people = [tokens([[5, 6, 7, 8], [9, 10, 11]]), tokens([[3, 4, 5]])]
    found = user_gradients(lm, people)
    assert distances_of(found)[1] == pytest.approx(gradient_norms(lm, people), rel=1e-4)
    # A user's is the mean of the records'.
    apart = user_gradients(lm, [[record] for record in people[0]])
    torch.testing.assert_close(found[0], apart.mean(0), rtol=1e-4, atol=1e-6)


def test_public_users_of_a_run_are_measured(replicate, tmp_path, monkeypatch):
    monkeypatch.setattr(concentration, "RESAMPLES", 20)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(SMALL), encoding="utf-8")
    code, out, err = replicate(
        "concentration", tmp_path / "run.yaml", "--out", tmp_path, "--users", 12, "--group-size", 1, "--group-size", 2
    )
    assert code == 0, err
    numbers = json.loads((tmp_path / "concentration.json").read_text(encoding="utf-8"))
    assert [(row["group_size"], row["users"]) for row in numbers["rows"]] == [(1, 12), (2, 12)]
    assert all(names(out, f"{row['ratio']:.3f}") for row in numbers["rows"])
    assert all(0.3 < row["ratio"] < 2.5 for row in numbers["rows"])
    # The more records, the less noise of their own, and the smaller the median norm.
    assert numbers["rows"][1]["clip_norm"] < numbers["rows"][0]["clip_norm"]
