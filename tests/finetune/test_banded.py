"""Banded noise in training: C^-1 z whatever is asked for, one band is ULS, kill and resume, and several processes."""

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from heldin.base.coins import seed_key
from heldin.defenses import carried_noise
from heldin.defenses.carried_noise import CarriedNoise
from heldin.defenses.choices import NoiseGenerator
from heldin.defenses.correlation import banded_square_root
from heldin.defenses.noise import BLOCK, NoiseSource
from heldin.defenses.samplers import BandedPoissonSampler, PoissonSampler
from heldin.finetune.loop import train
from heldin.finetune.private import private_gradient
from tests.finetune.test_private import KEY, RECIPE, _gradients, _training
from tests.oracles import banded

CPU = torch.device("cpu")
BANDS = BandedPoissonSampler(rate=0.4, population=30, bands=3)
SHAPE = torch.Size([4, 5])


def _noise(bands, key=KEY, generator=NoiseGenerator.PHILOX):
    return CarriedNoise(NoiseSource(generator, key), banded_square_root(bands))


@pytest.mark.parametrize("generator", list(NoiseGenerator))
@pytest.mark.parametrize("bands", [1, 2, 3, 8])
def test_the_noise_of_all_steps_is_c_inverse_times_independent_noise(bands, generator):
    source, carried = NoiseSource(generator, KEY), _noise(bands, generator=generator)
    independent = np.stack([source.gaussian(t, "w", SHAPE, 1.5, CPU).double().numpy() for t in range(20)])
    expected = np.einsum("ts,sij->tij", np.linalg.inv(banded.matrix(bands, 20)), independent)
    found = np.stack([carried.gaussian(t, "w", SHAPE, 1.5, CPU).numpy() for t in range(20)])
    assert found == pytest.approx(expected, abs=1e-5)
    if bands == 1:
        plain = [source.gaussian(t, "w", SHAPE, 1.5, CPU) for t in range(20)]
        assert all(torch.equal(torch.from_numpy(a), b) for a, b in zip(found, plain, strict=True))


def test_a_step_has_the_same_noise_in_whatever_order_and_shard_it_is_asked_for():
    in_order = _noise(4)
    whole = [in_order.gaussian(t, "w", SHAPE, 1.5, CPU) for t in range(12)]
    jumping = _noise(4)
    for step in (11, 3, 3, 4, 0, 9):
        assert torch.equal(jumping.gaussian(step, "w", SHAPE, 1.5, CPU), whole[step])
    shard = _noise(4)
    for step in (0, 1, 2, 7):
        assert torch.equal(shard.gaussian(step, "w", SHAPE, 1.5, CPU, (1, 3)), whole[step][1:3])
    # What was carried for another deviation, or other rows, is not used.
    assert torch.equal(shard.gaussian(8, "w", SHAPE, 1.5, CPU), whole[8])
    assert torch.allclose(shard.gaussian(9, "w", SHAPE, 3.0, CPU), 2 * whole[9], atol=1e-6)
    assert not torch.equal(_noise(4, seed_key(5)).gaussian(5, "w", SHAPE, 1.5, CPU), whole[5])


def test_vectors_carried_beside_the_passes_are_those_of_one_thread(monkeypatch):
    """As on a GPU, whose additions are made in another thread."""
    alone = _noise(5)
    expected = [alone.gaussian(t, name, SHAPE, 1.0, CPU) for t in range(9) for name in "ab"]

    class Gpu:
        type = "pretended"

    monkeypatch.setattr(carried_noise, "moved", lambda tensor, device: tensor)
    beside = CarriedNoise(_OnCpu(NoiseSource(NoiseGenerator.PHILOX, KEY)), banded_square_root(5))
    found = [beside.gaussian(t, name, SHAPE, 1.0, Gpu()) for t in range(9) for name in "ab"]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


class _OnCpu:
    def __init__(self, source):
        self.source = source

    def gaussian(self, step, name, shape, deviation, device, rows=None):
        return self.source.gaussian(step, name, shape, deviation, CPU, rows)


def test_b_minus_1_vectors_are_held():
    carried = _noise(4)
    shape = torch.Size([BLOCK // 4 + 7])
    before = _floats()
    for step in range(6):
        carried.gaussian(step, "w", shape, 1.0, CPU)
        assert _floats() - before <= 3 * shape.numel()
    assert _floats() - before == 3 * shape.numel()


def _floats():
    gc.collect()
    seen = {t.untyped_storage().data_ptr(): t.numel() for t in gc.get_objects() if type(t) is torch.Tensor}
    return sum(seen.values())


def test_one_band_trains_bitwise_the_weights_of_uls(make_lm, sequences, tmp_path):
    folders = {}
    for name, sampler in (
        ("uls", PoissonSampler(rate=0.4)),
        ("one band", BandedPoissonSampler(rate=0.4, population=30, bands=1)),
        ("three bands", BANDS),
    ):
        training = _training(sequences, sampler=sampler)
        result = train(make_lm(), sequences, RECIPE, tmp_path / name, private=training)
        folders[name] = load_file(result.folder / "model.safetensors")
    assert all(torch.equal(folders["one band"][key], folders["uls"][key]) for key in folders["uls"])
    assert not all(torch.equal(folders["three bands"][key], folders["uls"][key]) for key in folders["uls"])


def test_a_steps_gradient_is_the_noiseless_one_and_c_inverse_z(make_lm, sequences):
    noised, plain = _training(sequences, sampler=BANDS), _training(sequences, sampler=BANDS, noise_multiplier=0.0)
    lm, quiet = make_lm(), make_lm()
    inverse = np.linalg.inv(banded.matrix(3, 12))
    for step in range(4):
        private_gradient(lm.model, noised, step, sequences)
        private_gradient(quiet.model, plain, step, sequences)
        found, without = _gradients(lm.model), _gradients(quiet.model)
        for name, gradient in without.items():
            z = [noised.source.gaussian(s, name, gradient.shape, 0.8 * 0.5, CPU) for s in range(step + 1)]
            expected = gradient + sum(float(inverse[step, s]) * z[s] for s in range(step + 1)) / 4
            torch.testing.assert_close(found[name], expected, atol=1e-6, rtol=1e-4)


def test_a_run_that_was_killed_anywhere_ends_with_bitwise_the_same_weights(make_lm, sequences, tmp_path):
    training = _training(sequences, sampler=BANDS)
    whole = train(make_lm(), sequences, RECIPE, tmp_path / "whole", private=training)
    for stop in (1, 4, 7):
        done = []

        def interrupt(steps, done=done, stop=stop):
            done.append(steps)
            if sum(done) == stop:
                raise KeyboardInterrupt

        folder, lines = tmp_path / str(stop), []
        with pytest.raises(KeyboardInterrupt):
            train(make_lm(), sequences, RECIPE, folder, private=training, advance=interrupt)
        again = replace(training)  # another process has nothing in memory
        resumed = train(make_lm(), sequences, RECIPE, folder, private=again, say=lines.append)
        a, b = (load_file(r.folder / "model.safetensors") for r in (resumed, whole))
        assert all(torch.equal(a[name], b[name]) for name in b)
        # Said where there is a checkpoint to go on from: that of the fourth step.
        assert sum("4 earlier steps" in line for line in lines) == (stop > 4)


def test_no_file_of_a_run_holds_what_is_carried(make_lm, sequences, tmp_path):
    training = _training(sequences, sampler=BANDS)
    train(make_lm(), sequences, RECIPE, tmp_path, private=training)
    plain = _training(sequences)
    train(make_lm(), sequences, RECIPE, tmp_path / "plain", private=plain)

    def kept(folder):
        newest = folder / "resume" / "step-00000012"
        names = sorted(path.name for path in newest.iterdir())
        return names, sorted(load_file(newest / "optimizer.safetensors"))

    assert kept(tmp_path) == kept(tmp_path / "plain")
