"""Peaks of steps that were rehearsed without numbers, against what torch's allocator gives out for the real ones."""

import copy
import functools
import gc
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GPT2Config,
    GPTNeoConfig,
    GPTNeoXConfig,
    LlamaConfig,
    OPTConfig,
    Qwen2Config,
)

from heldin.defenses.choices import LocalUpdates
from heldin.finetune.batches import plain_batch_gradient
from heldin.finetune.holding import PlainClipping, clipped_batch_gradient
from heldin.finetune.local_updates import clipped_difference_sum
from heldin.finetune.memory import (
    EVALUATION,
    Rehearsal,
    Step,
    arithmetic_on,
    fitting_peak,
    scoring_peak,
    tensors_in,
    training_peak,
)
from heldin.finetune.passes import Passes, clipped_sum, put_gradient
from heldin.finetune.precision import autocast
from heldin.finetune.preparation import optimizer_of, with_adapters
from heldin.finetune.recipe import Lora, Optimizer, Precision, Recipe
from heldin.finetune.sampled_units import LocalWork
from heldin.finetune.sharded_gradients import clipped_shards, put_shards, sharded_batch_gradient
from heldin.finetune.sharding import local, shards, spread
from heldin.models.attention import use_exact_attention
from heldin.models.devices import Planned
from heldin.models.logprobs import batch_scores, tokens_per_batch
from tests.documents import tokens
from tests.oracles.allocated import most_allocated

CPU = torch.device("cpu")
SHAPE = GPTNeoConfig(
    hidden_size=96,
    num_layers=2,
    num_heads=2,
    attention_types=[[["global", "local"], 1]],
    vocab_size=1500,
    max_position_embeddings=64,
)
# Of one layer, where a case is not about what one layer holds while another computes.
SHALLOW = copy.deepcopy(SHAPE)
SHALLOW.num_layers, SHALLOW.attention_types, SHALLOW.attention_layers = 1, [[["global"], 1]], ["global"]
UNTIED = GPTNeoXConfig(
    hidden_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=128,
    vocab_size=900,
    max_position_embeddings=64,
)


WIDE = copy.deepcopy(UNTIED)
WIDE.hidden_size, WIDE.intermediate_size, WIDE.vocab_size = 256, 512, 4000


def records(count, length=24):
    return tokens([1 + (i + j) % 800 for j in range(length + 1)] for i in range(count))


def _no_noise(_, shape, device):
    # Not of empty memory: with weights that are not finite, a second step would take other ways than a first.
    return torch.zeros(shape, device=device)


def private(units, of, most, *, splits=False, length=24):
    """A private step of units of so many records."""

    def compute(model, passes, arithmetic, _):
        with autocast(arithmetic, CPU):
            found = clipped_sum(model, [[records(of, length)] * units], 1.0, passes)
        put_gradient(model, found.gradients, 1.0, 2.0, _no_noise)

    return Step(compute, most, of, splits)


def plain(size, most):
    return Step(lambda m, p, a, _: plain_batch_gradient(m, records(size), p.most, a), most, without_dropout=False)


def clipped(size, most):
    def compute(model, passes, arithmetic, _):
        with autocast(arithmetic, CPU):
            clipped_batch_gradient(model, PlainClipping("example", 1.0), records(size), passes)

    return Step(compute, most)


def own_steps(count=8, length=24):
    def compute(model, passes, arithmetic, _):
        work = LocalWork(records(count, length), [1.0] * count)
        total, _ = clipped_difference_sum(model, [work], LocalUpdates(learning_rate=0.1, batch_size=4), 1.0)
        put_gradient(model, total, 1.0, 2.0, None)

    return Step(compute, 4)


CASES = {
    "kept": (SHAPE, private(3, 4, 12), {}),
    "ghost or streamed": (SHAPE, private(3, 4, 12), {"memory": 4 * 2**16}),
    "a unit in several passes": (SHALLOW, private(2, 12, 4, splits=True), {}),
    "records alone": (UNTIED, private(12, 1, 12), {}),
    "bf16": (SHALLOW, private(3, 4, 12), {"precision": Precision.BF16}),
    "checkpointed": (SHAPE, private(3, 4, 12), {"checkpointing": True}),
    "adapters": (SHALLOW, private(3, 4, 12), {"lora": Lora(4)}),
    "plain, in micro-batches": (SHALLOW, plain(16, 8), {"optimizer": Optimizer.SGD}),
    "clipped without noise": (UNTIED, clipped(16, 8), {"optimizer": Optimizer.ADAFACTOR}),
    "users' own steps": (SHALLOW, own_steps(), {}),
    # What is held most when a user's difference is added, and not in the backward pass.
    "one step of a user's own on a short record": (WIDE, own_steps(1, 2), {"optimizer": Optimizer.SGD}),
}


def quick_and_slow(cases, *slow):
    """The cases, of which these run in the slow suite."""
    return [pytest.param(case, marks=pytest.mark.slow) if case in slow else case for case in cases]


def made(config, recipe):
    """A real model and its bytes."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.float32)
    use_exact_attention(model)
    model = with_adapters(model, recipe).train()
    return model, sum(its.nbytes for its in {t.data_ptr(): t for t in (*model.parameters(), *model.buffers())}.values())


def measured(config, recipe, step: Step, memory) -> int:
    """What two real steps take, weights included."""
    model, weights = made(config, recipe)
    return weights + allocated(model, recipe, step, None, memory)


def allocated(model, recipe, step: Step, its, memory=2**34) -> int:
    """What two real steps take beside the weights."""
    if recipe.checkpointing:
        from heldin.finetune.preparation import use_checkpointing

        use_checkpointing(model, without_dropout=True)
    passes = Passes(step.most, splits=step.splits, budget=memory // 4)
    optimizer = optimizer_of(model, recipe)
    arithmetic = arithmetic_on(recipe.precision, Planned("cpu", memory))

    def work():
        for _ in range(2):
            step.compute(model, passes, arithmetic, its)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return most_allocated(work)


def sharded(of, most):
    """A private step of two units of so many records, each shared out over the processes that hold the model."""

    def compute(model, passes, arithmetic, its):
        with autocast(arithmetic, CPU, keeps_casts=False):
            total, _ = clipped_shards(model, [records(of)] * 2, 1.0, passes, its)
        put_shards(model, total, 1.0, 2.0, lambda name, _, device: torch.zeros_like(total[name], device=device))

    return Step(compute, most)


def sharded_batch(size, most):
    def compute(model, passes, arithmetic, its):
        with autocast(arithmetic, CPU, keeps_casts=False):
            sharded_batch_gradient(model, records(size), passes.most, its)

    return Step(compute, most, without_dropout=False)


SHARDS = {
    "two processes": (SHALLOW, sharded(8, 4), {"shard": 2}),
    "four, in passes of one record": (SHALLOW, sharded(4, 1), {"shard": 4}),
    "weights that are not tied, in bf16": (UNTIED, sharded(4, 2), {"shard": 2, "precision": Precision.BF16}),
    "checkpointed": (SHAPE, sharded(4, 2), {"shard": 4, "checkpointing": True}),
    "plain, with SGD": (UNTIED, sharded_batch(16, 4), {"shard": 2, "optimizer": Optimizer.SGD}),
}


@pytest.mark.parametrize("case", quick_and_slow(SHARDS, "two processes", "weights that are not tied, in bf16"))
def test_a_rehearsed_step_of_one_of_several_processes_takes_what_the_allocator_gives_out(case):
    config, step, options = SHARDS[case]
    recipe = Recipe(**options)
    peak = training_peak(maker(config), recipe, step, Planned("cpu", 2**34))
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=recipe.shard)
    try:
        model, _ = made(config, recipe)
        its = spread(model, recipe, CPU)
        real = sum(local(p).nbytes for p in shards(model).values()) + allocated(model, recipe, step, its)
    finally:
        torch.distributed.destroy_process_group()
    assert peak.total == pytest.approx(real, rel=0.005)
    assert peak.processes == recipe.shard
    # The rehearsal leaves torch as it was.
    assert "resize_" not in vars(torch.UntypedStorage)


def maker(config) -> Callable:
    return lambda: AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.float32)


@functools.cache
def rehearsed(case):
    config, step, options = CASES[case]
    options = dict(options)
    memory = options.pop("memory", 2**34)
    return training_peak(maker(config), Recipe(**options), step, Planned("cpu", memory))


@pytest.mark.parametrize("case", quick_and_slow(CASES, "a unit in several passes", "records alone", "bf16"))
def test_a_rehearsed_step_takes_what_the_allocator_gives_out(case):
    config, step, options = CASES[case]
    options = dict(options)
    memory = options.pop("memory", 2**34)
    peak, real = rehearsed(case), measured(config, Recipe(**options), step, memory)
    assert peak.total == pytest.approx(real, rel=0.005)
    assert peak.work > 0


_COMMON = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 900,
    "max_position_embeddings": 64,
}
OTHERS = [
    GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=900, n_positions=64, bos_token_id=0, eos_token_id=0),
    LlamaConfig(**_COMMON, intermediate_size=64),
    Qwen2Config(**_COMMON, intermediate_size=64, num_key_value_heads=2),
    # Without a rule for its embedding: unit by unit.
    GemmaConfig(**_COMMON, intermediate_size=64, num_key_value_heads=2, head_dim=16),
    OPTConfig(**_COMMON, ffn_dim=64, word_embed_proj_dim=32),
]


@pytest.mark.slow
@pytest.mark.parametrize("config", OTHERS, ids=lambda its: its.model_type)
def test_other_models_are_rehearsed_in_the_ways_in_which_they_train(config):
    step, recipe = private(4, 3, 12), Recipe()
    peak = training_peak(maker(config), recipe, step, Planned("cpu", 2**34))
    model, _ = made(config, recipe)
    passes = Passes(12)
    step.compute(model, passes, "fp32", None)
    assert peak.ways == passes.effort.ways[0]
    assert peak.total == pytest.approx(measured(config, recipe, step, 2**34), rel=0.005)


def test_the_ways_of_a_rehearsal_are_those_of_the_step():
    peaks = [rehearsed(case) for case in ("kept", "ghost or streamed")]
    assert "materialise" in peaks[0].ways
    assert "materialise" not in peaks[1].ways or peaks[0].ways != peaks[1].ways
    assert peaks[1].total < peaks[0].total


def test_scoring_takes_what_the_allocator_gives_out():
    peak = scoring_peak(maker(SHAPE), 64, 2, Planned("cpu", 2**34))
    model, weights = made(SHAPE, Recipe())
    ids = torch.zeros(max(1, tokens_per_batch(model) // 64), 64, dtype=torch.long)
    with torch.no_grad():
        real = most_allocated(lambda: batch_scores(model.eval(), ids, ids, moments=False, ranks=False))
    assert peak.total == pytest.approx(2 * weights + real, rel=0.005)


def test_what_an_earlier_measurement_left_in_circles_is_no_part_of_the_next():
    """The profiler knows the sizes of what was made while it looked, and tells when they are given back."""

    def leave():
        circle = [torch.zeros(100_000)]
        circle.append(circle)

    def work():
        kept = torch.zeros(1000)
        gc.collect()
        return torch.zeros(1000) + kept

    expected = most_allocated(work)
    gc.disable()
    try:
        most_allocated(leave)
        assert most_allocated(work) == expected == 12_000
    finally:
        gc.enable()


def test_a_gpu_holds_less_of_a_step_that_computes_activations_again():
    """In half precision: what is computed again has the types that it had."""
    step = replace(plain(8, 8), without_dropout=True)
    kept, again = (
        training_peak(maker(SHAPE), Recipe(checkpointing=its), step, Planned("cuda", 2**34)) for its in (False, True)
    )
    assert again.work < kept.work


@pytest.mark.slow
def test_passes_are_halved_and_units_split_until_they_fit():
    step = private(6, 4, 24, length=48)
    whole = fitting_peak(maker(SHAPE), Recipe(), step, Planned("cuda", 2**34))
    assert (whole.records, whole.splits) == (24, False)
    said: list[str] = []
    small = fitting_peak(maker(SHAPE), Recipe(), step, Planned("cuda", whole.total // 3), said.append)
    assert small.records < 4
    assert small.splits
    assert small.total <= whole.total // 3
    assert len(said) > 1
    few = private(2, 2, 4)
    fixed = fitting_peak(maker(SHAPE), Recipe(), few, Planned("cuda", 2**34)).fixed
    none = fitting_peak(maker(SHAPE), Recipe(), few, Planned("cuda", fixed))
    assert (none.records, none.splits) == (1, True)
    # On a GPU passes unit by unit are recorded, and their sums stay.
    sums = 4 * sum(weight.numel() for weight in maker(SHAPE)().parameters())
    assert none.fixed == pytest.approx(fixed + sums, rel=1e-3)
    assert none.total > fixed


def test_what_smaller_passes_do_not_change_is_tried_once():
    said: list[str] = []
    peak = fitting_peak(maker(SHALLOW), Recipe(), plain(4, 4), Planned("cuda", 2**18), said.append)
    assert peak.fixed > 2**18  # weights, gradients and Adam's state
    assert (peak.records, len(said)) == (4, 1)
    said.clear()
    scored = replace(plain(4, 4), scored=64)
    peak = fitting_peak(maker(SHALLOW), Recipe(), scored, Planned("cuda", 2**23), said.append)
    assert (peak.moment, peak.records, len(said)) == (EVALUATION, 4, 1)
    own = replace(own_steps(), halves=False)
    peak = fitting_peak(maker(SHALLOW), Recipe(), own, Planned("cuda", 2**20), said.append)
    assert (peak.records, len(said)) == (4, 2)


def test_a_gpu_keeps_no_attention_weights_and_some_of_autocast_in_float32():
    long = copy.deepcopy(SHAPE)
    long.max_position_embeddings = 1024
    step = Step(lambda m, p, a, _: plain_batch_gradient(m, records(2, 1023), p.most, a), 2, without_dropout=False)
    here, there = (
        training_peak(maker(long), Recipe(precision=Precision.FP32), step, Planned(kind, 2**34))
        for kind in ("cpu", "cuda")
    )
    # Of two records and two heads, the L x L weights of a layer in float32.
    assert here.total - there.total > 2 * 2 * 1023**2 * 4


def test_a_step_of_a_large_model_takes_no_memory_to_rehearse():
    # 1.3 billion parameters, 5 GiB: only their shapes are here.
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    config = GPTNeoConfig()
    rehearsal = Rehearsal()
    model = rehearsal.model(maker(config), Recipe())
    assert sum(its.numel() for its in model.parameters()) > 1.3e9
    assert rehearsal.alive > 5.2e9
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB


def test_a_number_that_a_rehearsal_cannot_know_is_an_error():
    with Rehearsal(), pytest.raises(NotImplementedError, match=r"torch\.int64"):
        int(torch.zeros(5).argmax())


def test_tensors_are_found_wherever_arguments_hold_them():
    a, b, c = torch.zeros(1), torch.zeros(2), torch.arange(3).max(0)  # torch's own named tuple
    given = (a, [None, {"x": (b, 3)}], c, torch.Size([4]))
    expected = [a, b, *c]
    assert list(map(id, tensors_in(given))) == list(map(id, expected))
