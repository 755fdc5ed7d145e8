"""Noise of the stated distribution, a function of key, step and name; a wrong deviation is caught."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from heldin.base.coins import seed_key
from heldin.defenses import noise
from heldin.defenses.choices import NoiseGenerator
from heldin.defenses.noise import BLOCK, NoiseSource, gaussian
from tests.refusals import names

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


@every_generator
def test_rows_of_a_tensor_are_the_same_numbers_whoever_draws_them(generator):
    source, shape = NoiseSource(generator, KEY), torch.Size([3, BLOCK // 2 + 7])
    whole = source.gaussian(2, "w", shape, 1.5, CPU)
    for first, last in ((0, 1), (1, 3), (2, 3), (3, 3), (0, 3)):
        assert torch.equal(source.gaussian(2, "w", shape, 1.5, CPU, rows=(first, last)), whole[first:last])
    assert torch.equal(gaussian(generator, KEY, 2, "w", shape, 1.5, CPU), whole)
    # A tensor of one block is drawn as it was before there were blocks.
    assert torch.equal(source.gaussian(2, "w", torch.Size([40]), 1.5, CPU), whole.flatten()[:40])


@every_generator
def test_blocks_of_a_tensor_are_independent(generator):
    values = _draw(generator, count=3 * BLOCK, deviation=1.0).reshape(3, BLOCK)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert stats.pearsonr(values[one], values[other]).pvalue > 1e-6
        # Neither a copy nor its negative at any distance: the largest of 2^21 correlations of noise.
        spectrum = np.fft.rfft(values[one]) * np.conj(np.fft.rfft(values[other]))
        assert np.abs(np.fft.irfft(spectrum)).max() / BLOCK < 7 / BLOCK**0.5
    assert stats.kstest(values[2], "norm").pvalue > 1e-6


def test_secure_noise_is_drawn_a_step_ahead_in_other_processes(monkeypatch):
    monkeypatch.setattr(noise, "AHEAD_FROM", 2 * BLOCK)
    source, shape = NoiseSource(NoiseGenerator.SECURE, KEY), torch.Size([BLOCK + 5])
    said = [source.ahead(step, {"v": shape, "w": shape}) for step in (3, 4)]
    assert names(said[0], f"{2 * (BLOCK + 5):,}")
    assert said[1] is None
    drawn = dict(source._drawn)
    assert len(drawn) == 8
    for step, name in ((3, "w"), (4, "v"), (3, "v")):
        expected = gaussian(NoiseGenerator.SECURE, KEY, step, name, shape, 2.0, CPU)
        assert torch.equal(source.gaussian(step, name, shape, 2.0, CPU), expected)
    assert len(source._drawn) == 2
    source.close()
    assert NoiseSource(NoiseGenerator.PHILOX, KEY).ahead(1, {"w": torch.Size([10**9])}) is None
    assert NoiseSource(NoiseGenerator.SECURE, KEY).ahead(1, {"w": torch.Size([100])}) is None


def test_of_a_shard_only_its_blocks_are_drawn_ahead(monkeypatch):
    monkeypatch.setattr(noise, "AHEAD_FROM", BLOCK)
    # Two rows to a block: rows 3 to 4 lie in the second and the third of four.
    source, shape = NoiseSource(NoiseGenerator.SECURE, KEY), torch.Size([7, BLOCK // 2])
    shapes, rows = {"w": shape, "none of it": shape}, {"w": (3, 5), "none of it": (7, 7)}
    assert names(source.ahead(3, shapes, rows), f"{2 * BLOCK:,}")
    assert set(source._drawn) == {(3, "w", 1), (3, "w", 2)}
    whole = gaussian(NoiseGenerator.SECURE, KEY, 3, "w", shape, 2.0, CPU)
    assert torch.equal(source.gaussian(3, "w", shape, 2.0, CPU, rows=(3, 5)), whole[3:5])
    assert not source._drawn
    source.close()


def test_a_killed_process_costs_time_and_changes_no_number(monkeypatch):
    monkeypatch.setattr(noise, "AHEAD_FROM", 2 * BLOCK)
    source, shapes = NoiseSource(NoiseGenerator.SECURE, KEY), {"w": torch.Size([2 * BLOCK + 5])}
    assert names(source.ahead(3, shapes), f"{2 * BLOCK + 5:,}")
    for process in list(source._pool._processes.values()):
        process.kill()
        process.join()
    for step in (3, 4):
        expected = gaussian(NoiseGenerator.SECURE, KEY, step, "w", shapes["w"], 1.0, CPU)
        assert torch.equal(source.gaussian(step, "w", shapes["w"], 1.0, CPU), expected)
        # Once.
        assert (source.ahead(step + 1, shapes) is not None) == (step == 3)
        assert source._broken
    source.close()
