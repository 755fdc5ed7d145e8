"""A clipped step compared with a plain one, interleaved in one process: `python benchmarks/uls_step.py`.

Both steps use the same tokens. The model is a tiny GPT-Neo (1.07 million parameters, tied embeddings), without
optimizer and noise. A step is forward and backward; a clipped step also has norms, clipping and the sum. The benchmark
prints medians of the ratios to the plain step of the same round. On a shared machine, `--threads 1 --processor-time`
gives steadier figures. Opacus uses the hooks of GradSampleModule on the same model with untied embeddings, because it
refuses tied ones. Positions get a batch dimension, because its norms are wrong without it. Norms and the clipped sum
are computed as in its optimizer.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from transformers import GPTNeoConfig, GPTNeoForCausalLM

from heldin.defenses.gradients.per_unit_gradients import UnitBatch, clipped_gradient_sum

VOCABULARY = 2048


def new_model(*, tied: bool = True, hidden: int = 128) -> GPTNeoForCausalLM:
    torch.manual_seed(0)
    return GPTNeoForCausalLM(
        GPTNeoConfig(
            vocab_size=VOCABULARY,
            max_position_embeddings=128,
            hidden_size=hidden,
            num_layers=4,
            num_heads=4,
            window_size=64,
            attention_types=[[["global", "local"], 2]],
            resid_dropout=0.0,
            embed_dropout=0.0,
            attention_dropout=0.0,
            bos_token_id=0,
            eos_token_id=0,
            tie_word_embeddings=tied,
        )
    )


def new_units(units: int, records: int, positions: int) -> UnitBatch:
    ids = torch.randint(0, VOCABULARY, (units * records, positions + 1))
    return UnitBatch(ids[:, :-1], ids[:, 1:], torch.arange(units).repeat_interleave(records), units)


def plain_step(model: torch.nn.Module, units: UnitBatch) -> None:
    model.zero_grad(set_to_none=True)
    logits = model(input_ids=units.inputs, use_cache=False).logits
    F.cross_entropy(logits.flatten(0, 1), units.targets.flatten()).backward()


def opacus_step(hooked: Any, units: UnitBatch, clip_norm: float) -> None:
    for parameter in hooked.parameters():
        parameter.grad_sample = None
    rows, positions = units.inputs.shape
    places = torch.arange(positions).expand(rows, positions)
    logits = hooked(input_ids=units.inputs, position_ids=places, use_cache=False).logits
    losses = F.cross_entropy(logits.flatten(0, 1), units.targets.flatten(), reduction="none").view(rows, -1).mean(1)
    losses.mean().backward()
    samples = [p.grad_sample for p in hooked.parameters()]
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in samples], 1).norm(dim=1)
    factors = (clip_norm / (norms + 1e-6)).clamp(max=1.0)
    for parameter, sample in zip(hooked.parameters(), samples, strict=True):
        parameter.grad = torch.einsum("i,i...", factors, sample)


def compare(
    plain: Callable[[], Any], others: dict[str, Callable[[], Any]], rounds: int, clock: Callable[[], float]
) -> None:
    """Print the time of each step, divided by the plain step's."""

    def seconds(call: Callable[[], Any]) -> float:
        began = clock()
        call()
        return clock() - began

    for call in (plain, *others.values()):
        call()
        call()
    times: dict[str, list[float]] = {name: [] for name in ("plain", *others)}
    for _ in range(rounds):
        for name, call in (("plain", plain), *others.items()):
            times[name].append(seconds(call))
    print(f"{'plain':>20} {1e3 * statistics.median(times['plain']):8.1f} ms")
    for name in others:
        ratios = [t / p for t, p in zip(times[name], times["plain"], strict=True)]
        of_least = min(times[name]) / min(times["plain"])
        print(
            f"{name:>20} {1e3 * statistics.median(times[name]):8.1f} ms, ratio {statistics.median(ratios):.3f}"
            f" (of the fastest: {of_least:.3f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processor-time", action="store_true", help="instead of wall-clock time")
    parser.add_argument("--engines", nargs="*", default=["auto", "materialise", "ghost", "loop"])
    chosen = parser.parse_args()
    clock = time.process_time if chosen.processor_time else time.perf_counter
    torch.set_num_threads(chosen.threads)
    model = new_model()
    size = sum(p.numel() for p in model.parameters())
    print(f"{size / 1e6:.2f} million parameters, {chosen.threads} threads, medians of {chosen.rounds}")
    for count, records, positions in ((16, 4, 64), (8, 8, 64), (32, 1, 64)):
        units = new_units(count, records, positions)
        calls: dict[str, Callable[[], Any]] = {
            e: lambda e=e, u=units: clipped_gradient_sum(model, u, clip_norm=1.0, engine=e) for e in chosen.engines
        }
        if records == 1:
            calls["opacus hooks"] = _opacus(units)
        taken = clipped_gradient_sum(model, units, clip_norm=1.0).engine
        print(f"\n{count} units x {records} records x {positions} tokens ({taken})")
        compare(lambda u=units: plain_step(model, u), calls, chosen.rounds, clock)


def _opacus(units: UnitBatch) -> Callable[[], Any]:
    from opacus import GradSampleModule

    warnings.simplefilter("ignore")
    hooked = GradSampleModule(new_model(tied=False))
    return lambda: opacus_step(hooked, units, 1.0)


if __name__ == "__main__":
    main()
