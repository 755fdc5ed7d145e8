"""Noise of the stated distribution, a function of key, step and name; a wrong deviation is caught."""

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
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


@pytest.mark.parametrize("bits", [0, -1])
def test_no_bits_give_an_infinite_number(bits, monkeypatch):
    monkeypatch.setattr(noise, "secure_bits", lambda _, count: torch.full((count,), bits))
    value = _draw(NoiseGenerator.SECURE, deviation=1.0, count=1)[0]
    assert value == pytest.approx(-8.2 if bits == 0 else 8.2, abs=0.1)


def test_secure_bits_are_those_of_aes_in_counter_mode():
    """NIST SP 800-38A, F.5.5: the key stream is what the plaintext and the ciphertext differ in."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    plain = bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")
    stream = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor().update(bytes(16))
    assert bytes(a ^ b for a, b in zip(stream, plain, strict=True)).hex() == "601ec313775789a5b7a7f504bbf3d228"
    # A block's bits are the ciphers of the counters 0, 1, 2, whatever their number.
    codebook = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    expected = b"".join(codebook.update(counter.to_bytes(16, "big")) for counter in range(3))
    for count in (1, 5, 6):
        assert noise.secure_bits(key, count).numpy().tobytes() == expected[: 8 * count]


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


def test_secure_noise_is_drawn_a_step_ahead_in_other_threads(monkeypatch):
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


def test_no_more_is_held_ahead_than_memory_is_meant_for(monkeypatch):
    monkeypatch.setattr(noise, "AHEAD_FROM", BLOCK)
    monkeypatch.setattr(noise, "MOST_AHEAD", 2)
    source, shapes = NoiseSource(NoiseGenerator.SECURE, KEY), {"w": torch.Size([3 * BLOCK + 5])}
    assert source.ahead(3, shapes) is not None
    assert len(source._drawn) == 2
    expected = gaussian(NoiseGenerator.SECURE, KEY, 3, "w", shapes["w"], 1.0, CPU)
    assert torch.equal(source.gaussian(3, "w", shapes["w"], 1.0, CPU), expected)
    assert not source._drawn
    source.close()
