"""Precisions, memory and ways of a training: settled once, kept over resumes, said and recorded."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from heldin.defenses.gradients import engine_choice
from heldin.finetune.checkpoints import finished_state
from heldin.finetune.effort import KEPT_WAYS, Effort, Memory
from heldin.finetune.loop import train
from heldin.finetune.precision import arithmetic_of, autocast
from heldin.finetune.preparation import fused_on
from heldin.finetune.recipe import Lora, Precision, Recipe, Select
from heldin.finetune.training import job_name
from heldin.models.devices import copy_on, device_name
from heldin.stages.train.training_facts import effort_facts
from tests.finetune.test_private import _training
from tests.refusals import refused
from tests.tiny_models import lora

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
RECIPE = Recipe(epochs=1, batch_size=8, learning_rate=1e-3, select=Select.LAST, sequence_length=31, checkpoint_every=3)


def test_two_precisions_in_one_process(make_lm, sequences, tmp_path):
    """As where pre-training is "auto" and fine-tuning bf16: once a traceback of accelerate."""
    first = train(make_lm(), sequences, RECIPE, tmp_path / "auto")
    second = train(make_lm(), sequences, replace(RECIPE, precision=Precision.BF16), tmp_path / "bf16")
    third = train(make_lm(), sequences, RECIPE, tmp_path / "again")
    assert [its.effort.precisions for its in (first, second, third)] == [["fp32"], ["bf16"], ["fp32"]]
    one, two, three = (load_file(its.folder / "model.safetensors") for its in (first, second, third))
    assert all(torch.equal(one[name], three[name]) for name in one)
    assert not all(torch.equal(one[name], two[name]) for name in one)
    assert all(torch.allclose(one[name], two[name], atol=2e-2) for name in one)


def test_precision_follows_the_device(monkeypatch):
    class Here:
        def __init__(self, _device):
            pass

        __enter__ = __exit__ = lambda *_: None

    monkeypatch.setattr(torch.cuda, "device", Here)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla V100")
    # As on a V100 or T4: bfloat16 is "supported", by emulation.
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert arithmetic_of(Precision.AUTO, CUDA) == "fp32"
    with refused(by=arithmetic_of, naming=("finetune.precision", "bf16", "Tesla V100", "fp32")):
        arithmetic_of(Precision.BF16, CUDA)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    assert [arithmetic_of(its, CUDA) for its in Precision] == ["bf16", "fp32", "bf16"]
    assert [arithmetic_of(its, CPU) for its in Precision] == ["fp32", "fp32", "bf16"]
    with autocast("bf16", CPU):
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    with autocast("fp32", CPU):
        assert not torch.is_autocast_enabled("cpu")


def test_what_torch_has_cached_counts_as_free(monkeypatch):
    gib = 2**30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2 * gib, 80 * gib))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 76 * gib)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 20 * gib)
    assert engine_choice.default_budget(CUDA) == (2 + 76 - 20) * gib // 2
    assert engine_choice.default_budget(CPU) > 0


def test_memory_is_settled_once_and_kept_over_resumes(make_lm, sequences, tmp_path, monkeypatch):
    """Another budget at a resume would take other ways for the same shapes."""
    asked = []

    def budget(_device):
        asked.append(None)
        return 10**6 * len(asked)

    monkeypatch.setattr("heldin.finetune.training.default_budget", budget)
    monkeypatch.setattr("heldin.defenses.gradients.engine_choice.default_budget", budget)
    training, said = _training(sequences, micro_records=8), []

    def stop(steps, seen=[]):  # noqa: B006
        seen.append(steps)
        if sum(seen) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(make_lm(), sequences, RECIPE, tmp_path, private=training, advance=stop)
    assert len(asked) == 1
    result = train(make_lm(), sequences, RECIPE, tmp_path, private=training, say=said.append)
    assert len(asked) == 1
    assert result.effort.memory == Memory(device_name(CPU), 10**6)
    assert result.effort.ways[0].startswith("auto: ")
    assert not any("per-unit gradients" in line for line in said)  # said before the interruption
    elsewhere = Effort(memory=Memory("another GPU", 5), devices=["another GPU"])
    assert elsewhere.goes_on("fp32", CPU, 1) == ["another GPU"]
    assert elsewhere.memory is None


class Scaled(nn.Module):
    """A layer without a rule: its use is hidden from the engine's hooks."""

    def __init__(self, head):
        super().__init__()
        self.head, self.factor = head, nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.head(x) * self.factor


def test_a_fall_to_one_backward_pass_per_unit_is_said_once_and_recorded(make_lm, sequences, tmp_path):
    lm, said = make_lm(), []
    lm.model.transformer.ln_f = Scaled(lm.model.transformer.ln_f)
    result = train(lm, sequences, RECIPE, tmp_path, private=_training(sequences, micro_records=8), say=said.append)
    notices = [line for line in said if "one backward pass per unit" in line]
    assert len(notices) == 1
    assert "'transformer.ln_f'" in notices[0]
    assert result.effort.ways == ["loop"]
    facts = effort_facts(result)
    assert facts.notices == [notices[0].removeprefix("per-unit gradients: ")]
    assert facts.ways == ["loop"]


def test_tokens_and_gradients_add_up_over_resumes(make_lm, sequences, tmp_path):
    whole = train(make_lm(), sequences, RECIPE, tmp_path / "whole")
    assert whole.effort.tokens == sum(len(s) - 1 for s in sequences)
    assert whole.gradients == len(sequences)

    def stop(steps, seen=[]):  # noqa: B006
        seen.append(steps)
        if sum(seen) == 3:
            raise KeyboardInterrupt

    folder = tmp_path / "resumed"
    with pytest.raises(KeyboardInterrupt):
        train(make_lm(), sequences, replace(RECIPE, checkpoint_every=1), folder, advance=stop)
    kept = finished_state(folder / "resume")
    resumed = train(make_lm(), sequences, RECIPE, folder)
    # Two steps are in the checkpoint, the third is done again: nothing is counted twice.
    assert 0 < kept.effort.tokens < resumed.effort.tokens == whole.effort.tokens
    assert resumed.effort.step_seconds > kept.effort.step_seconds > 0
    assert resumed.effort.step_seconds <= resumed.seconds + 1e-6
    facts = effort_facts(resumed)
    assert facts.tokens_per_second == pytest.approx(resumed.effort.tokens / resumed.effort.step_seconds, abs=0.1)
    assert facts.gradients_per_second == pytest.approx(40 / resumed.effort.step_seconds, abs=0.1)
    assert (facts.processes, facts.devices, facts.peak_memory) == (1, [device_name(CPU)], None)


def test_the_list_of_ways_does_not_grow_without_end():
    effort = Effort()
    said = [line for i in range(100) for line in effort.note(f"way {i}", None)]
    assert said == ["per-unit gradients: way 0"]
    assert len(effort.ways) == KEPT_WAYS


def test_what_changes_only_the_rounding_is_not_in_the_jobs_name(make_lm, sequences):
    lm = make_lm()
    names = {job_name(lm, sequences, replace(RECIPE, checkpointing=its), None) for its in (False, True)}
    assert len(names) == 1
    assert repr(RECIPE) == repr(replace(RECIPE, checkpointing=True))  # names of cached models follow from it
    assert job_name(lm, sequences, replace(RECIPE, learning_rate=2e-3), None) not in names


def test_optimizers_are_fused_on_a_gpu_only():
    assert fused_on(CUDA) is True
    assert fused_on(CPU) is None


def test_adapters_are_merged_in_a_copy_on_the_cpu(make_lm, sequences, tmp_path, monkeypatch):
    model = lora()
    copied, before = copy_on(model, torch.device("cpu")), {name: p.clone() for name, p in model.named_parameters()}
    own = {p.data_ptr() for p in model.parameters()}
    assert not own & {p.data_ptr() for p in copied.parameters()}
    weights = copied.base_model.model
    assert weights.lm_head.weight is weights.transformer.wte.weight  # tied ones stay tied
    ids = torch.arange(8)[None]
    expected = model.eval()(input_ids=ids).logits
    torch.testing.assert_close(copied.merge_and_unload().eval()(input_ids=ids).logits, expected)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    # On a GPU ``deepcopy`` would copy each tensor where it lies; as a stand-in no tensor may be copied by it at all.
    monkeypatch.setattr(nn.Parameter, "__deepcopy__", lambda *_: pytest.fail("a weight was copied where it lies"))
    train(make_lm(), sequences, replace(RECIPE, lora=Lora(rank=2)), tmp_path)
