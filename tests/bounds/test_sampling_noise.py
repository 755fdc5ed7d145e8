"""The stated model of sampling noise against simulated audits, in which samples are drawn one by one."""

import numpy as np
import pytest

from heldin.bounds.one_run import attack_mu
from heldin.bounds.roc import auroc
from heldin.bounds.sampling_noise import sampled_auroc
from tests.refusals import names, refused


@pytest.mark.parametrize("samples", [1, 4, 16, 64])
@pytest.mark.parametrize("noise", [0.5, 8.0])
def test_it_is_the_auroc_of_simulated_audits(samples, noise):
    rng = np.random.default_rng(samples)
    users, mu = 20_000, attack_mu(0.85)
    exact = np.concatenate([rng.normal(mu, 1, users), rng.normal(0, 1, users)])
    drawn = exact[:, None] + rng.normal(0, np.sqrt(noise), (2 * users, samples))
    scores = drawn.mean(axis=1)
    assert auroc(scores[:users], scores[users:]) == pytest.approx(sampled_auroc(0.85, samples, noise), abs=0.012)


def test_it_is_that_of_samples_that_hit_or_miss():
    """A user's texts are reproduced with a probability of their own; each sample is a coin with it."""
    rng = np.random.default_rng(3)
    users, cuts, samples = 4000, 18, 8
    rates = np.clip(np.concatenate([rng.normal(0.34, 0.05, users), rng.normal(0.30, 0.05, users)]), 0.01, 0.99)
    hits = rng.binomial(samples, np.repeat(rates[:, None], cuts, axis=1)).mean(axis=1) / samples
    exact = auroc(rates[:users], rates[users:])
    noise = float(np.mean(rates * (1 - rates))) / cuts / 0.05**2
    found = auroc(hits[:users], hits[users:])
    assert found == pytest.approx(sampled_auroc(exact, samples, noise), abs=0.012)
    assert found < exact - 0.04  # the noise matters


def test_many_samples_reach_the_whole_and_no_noise_costs_nothing():
    assert sampled_auroc(0.8, 10**9) == pytest.approx(0.8, abs=1e-6)
    assert sampled_auroc(0.8, 1, 0.0) == pytest.approx(0.8)
    assert sampled_auroc(0.5, 1) == 0.5
    for arguments in ((0.8, 0), (0.8, 4, -1.0), (0.8, 4, float("inf"))):
        with refused(by="sampled_auroc"):
            sampled_auroc(*arguments)


def test_the_command_says_what_so_many_samples_reach(call):
    code, out, _ = call("power", "--users", 200, "--auroc", 0.8, "--access", "text", "--samples", 16)
    assert code == 0
    assert names(out, "16 samples", f"{sampled_auroc(0.8, 16):.3f}", "0.8")
