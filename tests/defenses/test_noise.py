"""Noise of the stated distribution, a function of key, step and name; a wrong deviation is caught."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from heldin.base.coins import seed_key
from heldin.defenses.choices import NoiseGenerator
from heldin.defenses.noise import gaussian

KEY = seed_key(5)
CPU = torch.device("cpu")
every_generator = pytest.mark.parametrize("generator", list(NoiseGenerator), ids=["philox", "secure"])


def _draw(generator, *, step=0, name="w", deviation=1.3, count=40_000, key=KEY):
    return gaussian(generator, key, step, name, torch.Size([count]), deviation, CPU).numpy()


@every_generator
def test_it_has_the_stated_deviation_and_two_thirds_or_three_halves_of_it_are_rejected(generator):
    values = _draw(generator)
    assert stats.kstest(values / 1.3, "norm").pvalue > 1e-6
    for factor in (2 / 3, 3 / 2):
        assert stats.kstest(values / (1.3 * factor), "norm").pvalue < 1e-6


@every_generator
def test_steps_names_and_keys_give_independent_noise_and_repeating_gives_the_same(generator):
    base = _draw(generator)
    assert np.array_equal(base, _draw(generator))
    for other in (_draw(generator, step=1), _draw(generator, name="v"), _draw(generator, key=seed_key(6))):
        assert stats.pearsonr(base, other).pvalue > 1e-6
        assert not np.array_equal(base, other)
    assert stats.pearsonr(base[:-1], base[1:]).pvalue > 1e-6


def test_no_bits_of_the_hash_give_an_infinite_number(monkeypatch):
    for byte in (b"\x00", b"\xff"):
        constant = SimpleNamespace(shake_256=lambda _, byte=byte: SimpleNamespace(digest=lambda size: byte * size))
        monkeypatch.setattr("heldin.defenses.noise.hashlib", constant)
        assert abs(_draw(NoiseGenerator.SECURE, deviation=1.0, count=1)[0]) == pytest.approx(8.2, abs=0.1)


@every_generator
def test_shape_and_finiteness(generator):
    values = gaussian(generator, KEY, 0, "w", torch.Size([3, 4]), 2.0, CPU)
    assert values.shape == (3, 4)
    assert values.dtype == torch.float32
    assert torch.isfinite(gaussian(generator, KEY, 1, "w", torch.Size([10**6]), 1.0, CPU)).all()
