"""Products in true float32 whatever the environment; the device that was asked for."""

import pytest
import torch

from heldin.defenses.gradients import per_unit_gradients
from heldin.defenses.gradients.per_unit_gradients import UnitBatch, clipped_gradient_sum
from heldin.models.arithmetic import true_float32
from heldin.models.devices import default_device, seed_generators
from heldin.models.logprobs import score_texts
from tests.refusals import names, refused

BACKENDS = torch.backends


@pytest.fixture
def settings():
    """Every setting as it is by default, also after the test."""

    def reset():
        torch.set_float32_matmul_precision("highest")
        BACKENDS.cuda.matmul.fp32_precision = BACKENDS.mkldnn.matmul.fp32_precision = "none"

    reset()
    yield
    reset()


def found():
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:
        older = "mixed"
    return older, BACKENDS.cuda.matmul.fp32_precision, BACKENDS.mkldnn.matmul.fp32_precision


def _older(precision):
    torch.set_float32_matmul_precision(precision)


def _newer():
    BACKENDS.cuda.matmul.fp32_precision, BACKENDS.mkldnn.matmul.fp32_precision = "tf32", "bf16"


def _allow_tf32():
    BACKENDS.cuda.matmul.allow_tf32 = True


@pytest.mark.parametrize("setting", [lambda: _older("high"), lambda: _older("medium"), _newer, _allow_tf32])
def test_float32_is_true_inside_and_the_settings_are_back_outside(settings, setting):
    setting()
    before = found()
    assert "ieee" not in before[1:2]
    with true_float32():
        assert found() == ("highest", "ieee", "ieee")
    assert found() == before
    with pytest.raises(ValueError, match="inside"), true_float32():
        raise ValueError("inside")
    assert found() == before


def test_scoring_and_clipping_do_not_follow_the_environment(settings, make_lm, english):
    """Seen from inside the model's passes, forward and backward, and where gradients are summed."""
    lm, seen = make_lm(), []
    lm.model.transformer.h[0].register_forward_hook(lambda *_: seen.append(found()))
    lm.model.transformer.h[0].register_full_backward_hook(lambda *_: seen.append(found()))
    _older("medium")
    before = found()
    score_texts(lm, english[:5])
    assert set(seen) == {("highest", "ieee", "ieee")}
    seen.clear()
    with pytest.MonkeyPatch.context() as patch:
        real = per_unit_gradients.clip_factors
        patch.setattr(per_unit_gradients, "clip_factors", lambda *a: (seen.append(found()), real(*a))[1])
        ids = torch.arange(12).view(2, 6)
        units = UnitBatch(ids, ids + 1, torch.arange(2), 2)
        for engine in ("materialise", "ghost", "loop"):
            clipped_gradient_sum(lm.model, units, clip_norm=0.1, engine=engine)
    assert len(seen) > 9
    assert set(seen) == {("highest", "ieee", "ieee")}
    assert found() == before != ("highest", "ieee", "ieee")


def test_the_device_is_the_one_asked_for(monkeypatch):
    monkeypatch.delenv("HELDIN_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert default_device().type == "cuda"
    monkeypatch.setenv("HELDIN_DEVICE", "cpu")
    assert default_device().type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("HELDIN_DEVICE", "cuda")
    with refused(by=default_device, naming=("'cuda'", "GPU")):
        default_device()
    monkeypatch.setenv("HELDIN_DEVICE", "gpu")
    with refused(by=default_device, naming="'gpu'"):
        default_device()


def test_device_of_a_command(call, monkeypatch, small_config, tmp_path):
    monkeypatch.setenv("HELDIN_DEVICE", "cpu")  # restored afterwards: the option sets it for the process
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, out, _ = call("run", small_config, "--check", "--device", "cpu")
    assert code == 0
    assert "on the CPU" in out
    code, _, err = call("run", small_config, "--check", "--device", "cuda")
    assert (code, err.count("'cuda'")) == (2, 1)
    assert "1 problem" in err
    code, _, err = call("run", small_config, "--device", "cuda", "--out", tmp_path / "run")
    assert (code, err.count("\n")) == (2, 1)
    assert "'cuda'" in err
    assert not (tmp_path / "run").exists()
    code, _, err = call("--device", "tpu", "run", small_config)
    assert (code, err.count("\n")) == (2, 1)
    assert names(err, "'tpu'", "'cpu'", "'cuda'")


def test_on_a_cpu_its_generator_is_seeded_as_torch_seeds_it_and_no_other(monkeypatch):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        expected = torch.rand(3)
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "manual_seed_all", lambda _: pytest.fail("a GPU's generator was seeded"))
            seed_generators(5, torch.device("cpu"))
            assert torch.equal(torch.rand(3), expected)
        seeded = []
        monkeypatch.setattr(torch, "manual_seed", seeded.append)
        seed_generators(6, torch.device("cuda"))
        assert seeded == [6]
