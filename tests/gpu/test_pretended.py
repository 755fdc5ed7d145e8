"""The pretended GPU: it says where tensors are, refuses what a GPU refuses, and computes what the CPU computes."""

import pytest
import torch

from heldin.defenses.gradients import products
from heldin.defenses.noise import NoiseGenerator, NoiseSource
from heldin.models.devices import begin_peak, default_device, highest_peak, moved
from tests.gpu.pretended import MEMORY, Mixed, Waited, pretend

CPU = torch.device("cpu")


@pytest.fixture
def gpu(monkeypatch):
    with pretend(monkeypatch):
        yield torch.device("cuda")


def test_tensors_say_where_they_are(gpu):
    here, there = torch.ones(3), torch.ones(3, device=gpu)
    assert default_device().type == "cuda"
    assert (here.device.type, there.device.type, there.cpu().device.type) == ("cpu", "cuda", "cpu")
    assert [its.device.type for its in (there[1:], there + 1, torch.zeros_like(there), here.to(there))] == ["cuda"] * 4
    assert here.to(torch.float64).device.type == here.to(gpu).cpu().device.type == "cpu"
    layer = torch.nn.Linear(3, 2).to(gpu)
    layer(there).sum().backward()
    assert layer.weight.grad.is_cuda


@pytest.mark.parametrize(
    "mix",
    [
        lambda here, there: here + there,
        lambda here, there: there.mul_(here),
        lambda here, there: torch.cat([here, there]),
        lambda here, there: torch.nn.functional.linear(there, here[None]),
        lambda here, there: here[there.long()],
        lambda here, there: there.index_add(0, here.long(), there),
        lambda here, there: torch.where(here > 0, there, 0.0),
        lambda here, there: torch.nn.functional.embedding(here.long(), there[:, None]),
    ],
)
def test_tensors_of_two_devices_do_not_mix(gpu, mix):
    with pytest.raises(Mixed):
        mix(torch.ones(3), torch.ones(3, device=gpu))


def test_what_a_gpu_takes_from_the_cpu(gpu):
    there = torch.arange(3.0, device=gpu)
    assert (there + torch.tensor(1.0)).is_cuda  # a number
    assert there[torch.tensor([0, 2])].tolist() == [0.0, 2.0]
    there.copy_(torch.ones(3))
    assert there.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(TypeError, match="can't convert cuda"):
        there.numpy()


@pytest.mark.parametrize(
    "wait",
    [
        lambda here, there: bool(there.any()),
        lambda here, there: there.tolist(),
        lambda here, there: there.cpu(),
        lambda here, there: here.to("cuda"),
        lambda here, there: here.to("cuda", non_blocking=True),  # not pinned
        lambda here, there: torch.tensor([1.0], device="cuda"),
        lambda here, there: there[there > 0],
        lambda here, there: torch.unique(there),
        lambda here, there: torch.bincount(there.long()),
    ],
)
def test_what_waits_for_a_gpu_is_told(gpu, wait):
    here, there = torch.ones(3), torch.ones(3, device=gpu)
    wait(here, there)
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(Waited):
        wait(here, there)
    moved(here, gpu).add_(there).mul_(2.0)
    torch.where(there > 0, there, 0.0)


def test_gradients_go_back_to_where_a_tensor_was(gpu):
    weight = torch.ones(3, requires_grad=True)
    (weight.to(gpu) * torch.arange(3.0, device=gpu)).sum().backward()
    assert weight.grad.device == CPU
    assert weight.grad.tolist() == [0.0, 1.0, 2.0]


def test_half_products_with_float32_results_are_there_on_a_gpu_alone(gpu):
    left, right = torch.randn(2, 4, 4).bfloat16().split(1)
    found = products.product(left.to(gpu), right.to(gpu))
    torch.testing.assert_close(found.cpu(), left.float() @ right.float())
    with pytest.raises(NotImplementedError, match="CUDA"):
        torch.bmm(left, right, out_dtype=torch.float32)


def test_parts_of_the_noise_are_those_of_the_whole(gpu, monkeypatch):
    """Blocks are drawn into their place, or beside it where a part is wanted."""
    monkeypatch.setattr("heldin.defenses.noise.BLOCK", 8)
    monkeypatch.setattr("heldin.defenses.noise.BLOCK", 8)
    source = NoiseSource(NoiseGenerator.PHILOX, bytes(32))
    shape = torch.Size([5, 5])
    whole = source.gaussian(3, "w", shape, 2.0, gpu)
    assert len(set(whole.flatten().tolist())) == 25
    for first in range(5):
        for last in range(first, 6):
            assert torch.equal(source.gaussian(3, "w", shape, 2.0, gpu, rows=(first, last)), whole[first:last])


def test_a_peak_is_of_its_training_and_the_highest_of_the_process(gpu, monkeypatch):
    held = {"most": 700}
    monkeypatch.setattr("heldin.models.devices._highest", 0)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: held["most"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: held.update(most=100))
    begin_peak(CPU)
    assert held["most"] == highest_peak(gpu) == 700
    begin_peak(gpu)
    assert (held["most"], highest_peak(gpu)) == (100, 700)
    held["most"] = MEMORY
    assert highest_peak(gpu) == MEMORY
