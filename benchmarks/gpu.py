"""Correctness and speed of private steps on a GPU: `make gpu`, or `PYTHONPATH=src python benchmarks/gpu.py --only 2`.

The benchmark needs no network and no weights, because models are random. A part has one or more cases; `--case 2` runs
the third case only. When a case ends, it appends a line to benchmarks/gpu.jsonl (device, driver, versions, commit),
prints pass or fail for each figure and the duration, and renews the table of GPUs in RESULTS.md. The exit code is 1 if
a figure or a case fails, and 2 if there is no GPU. Each time has the share of the card next to it: 6 N FLOPs per token,
without attention, over the seconds and over the rate of a bf16 matrix product on that card in the same process. Parts
1, 2 and 8 need only torch, transformers, scipy and pydantic; adapters (part 2) also need peft. Part 3 also needs
dp-accounting and Opacus, part 4 the client of endpoints, part 5 cryptography, and part 9 accelerate. Parts 6 and 7 need
everything that heldin installs.

1. Every engine with V = 50,257 tied and 4 layers, and TF32 enabled from outside. In float32, the distance to plain
   float64 backward passes on the CPU is at most 1e-4. In bfloat16, the distance to plain bfloat16 backward passes is at
   most 2e-2; the distances of both to float64 are printed, which are rounding errors of the passes. Every contribution
   is at most C (1 + 1e-4).
2. Steps of random 125M and 1.3B models over users of 16 x 512 and 16 x 1,024 tokens. The ways are a plain step (same
   loss, attention and passes), "auto" by the functions and with the noise of training, and unit by unit. Adapters of
   rank 8 over all weights are measured with 16 users at 1.3B. Times are medians of steps 5 to 10 with Adam. A step
   waits only where training waits. One case per shape also compares the peak memory with a rehearsal's prediction.
3. Example DP with 32 records of 512 tokens at 125M, over plain training and over Opacus (hooks, ghost clipping).
4. Scoring of 5,000 texts through the score cache, including tokenizing, over bare forward passes on given tokens; in
   float32 and in bfloat16.
5. Noise and optimizer of a 125M step. Also the host's part of a ULS step of 342,477 users with cohorts of 1,024: the
   drawn users, their records, their passes, and the keys of the noise.
6. Whole runs of a 125M shape, pre-trained on public users of Enron (of the built-in corpus, without HELDIN_DATA_DIR).
   They are fine-tuned without a defense and with ULS at epsilon 8, in both precisions, and attacked.
7. With several GPUs: ULS steps at 125M by replicas and in shards, over steps of one GPU.
8. Profiles of a plain and a ULS step at 125M and at 1.3B: most expensive kernels, seconds and bytes by class, gaps.
9. Our plain step at 125M and at 1.3B, over a plain PyTorch loop and over transformers' Trainer, each with and without
   torch.compile.
"""

import argparse
import contextlib
import functools
import json
import math
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from gpu_base import SHAPES, Figure, Shape, give_back, peak
from gpu_table import renew

LINES = Path(__file__).with_name("gpu.jsonl")
RESULTS = Path(__file__).with_name("RESULTS.md")
MINUTES = 12  # of all parts of one GPU
SECONDS = 150  # of a case, which is then stopped

Measured = tuple[list[Figure], dict[str, Any]]
Part = Callable[[torch.device], Measured]


# Their modules are imported when they run, for what they need is not everywhere.
def part_1() -> Sequence[Part]:
    from gpu_correctness import correctness

    return [lambda device: (correctness(Shape(4, 768, 12, context=512), 512, device), {})]


def part_2() -> Sequence[Part]:
    from gpu_steps import CASES, steps

    return [functools.partial(steps, case, SHAPES[case.shape]) for case in CASES]


def part_3() -> Sequence[Part]:
    from gpu_examples import example_dp

    return [functools.partial(example_dp, SHAPES["125M"], 32, 512)]


def part_4() -> Sequence[Part]:
    from gpu_scoring import scoring

    return [functools.partial(scoring, SHAPES["125M"], 5_000, 120)]


def part_5() -> Sequence[Part]:
    from gpu_beside import beside_gradients

    return [functools.partial(beside_gradients, SHAPES["125M"], 342_477, 1024)]


def part_6() -> Sequence[Part]:
    from gpu_whole import RUN_SHAPE, corpus_of, whole_runs

    return [lambda device: whole_runs(corpus_of(), RUN_SHAPE, 256, device=device)]


def part_7() -> Sequence[Part]:
    from gpu_whole import several

    # The figure to reach is of two; where there are more, of all as well.
    return [
        lambda device, its=processes: several(SHAPES["125M"], device, its, "bf16")
        for processes in sorted({2, torch.cuda.device_count()})
    ]


def part_8() -> Sequence[Part]:
    from gpu_profile import CASES, profile_step

    return [functools.partial(profile_step, case, name, SHAPES[case.shape]) for case, name in CASES]


def part_9() -> Sequence[Part]:
    from gpu_baselines import BASELINES, beside

    return [functools.partial(beside, baseline, SHAPES[baseline.case.shape]) for baseline in BASELINES]


PARTS: dict[int, Callable[[], Sequence[Part]]] = {
    1: part_1,
    2: part_2,
    3: part_3,
    4: part_4,
    5: part_5,
    6: part_6,
    7: part_7,
    8: part_8,
    9: part_9,
}
OF_SEVERAL = 7
PROFILED = 8  # each case in a process of its own


class TooLong(Exception):
    """A case ran longer than its limit."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TooLong in this block after ``seconds`` seconds, as soon as Python executes the next instruction."""

    def stop(*_: object) -> None:
        raise TooLong(f"over {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attempted(part: Part, device: torch.device, seconds: float = SECONDS) -> Measured:
    """Return the measurements of a case. If the case ends in an error, report it as failed, so other cases run."""
    try:
        with limited(seconds):
            return part(device)
    except Exception as error:
        what, told = (
            f"ended in {type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}",
            traceback.format_exc(),
        )
    # Out here, where the error is gone, whose traceback would keep the case's tensors. After some errors CUDA gives
    # nothing back any more.
    print(told, file=sys.stderr, flush=True)
    with contextlib.suppress(RuntimeError):
        give_back()
    return [Figure(what, math.inf, 0.0)], {"failed": told}


def cases_of(number: int) -> Sequence[Part]:
    """Return the cases of a part. If a part cannot be imported, return one case that says so when it runs."""
    try:
        return PARTS[number]()
    except Exception as error:
        missing = error

        def refuse(_: torch.device) -> Measured:
            raise missing

        return [refuse]


def provenance(device: torch.device) -> dict[str, Any]:
    """Return the device and the versions with which a part was measured."""
    here = Path(__file__).resolve().parent

    def said(*command: str) -> str | None:
        try:
            return subprocess.run(command, cwd=here, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return None

    return {
        "device": torch.cuda.get_device_name(device),
        "memory": torch.cuda.get_device_properties(device).total_memory,
        "driver": said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": said("git", "rev-parse", "HEAD"),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def measure(number: int, case: int, part: Part, device: torch.device, limit: float) -> int:
    """Measure a case, print and append its measurements, and renew the table. Return the number of failed figures."""
    began = time.monotonic()
    figures, details = attempted(part, device, limit)
    seconds = round(time.monotonic() - began, 1)
    print(f"part {number}, case {case}, {seconds:,.0f} s", flush=True)
    print("\n".join(figure.line() for figure in figures), flush=True)
    told = {"part": number, "case": case, "seconds": seconds, "peak": peak_or_none(device)}
    with LINES.open("a", encoding="utf-8") as lines:
        lines.write(
            json.dumps({**provenance(device), **told, "figures": [asdict(figure) for figure in figures], **details})
            + "\n"
        )
    renew(RESULTS, LINES)
    return sum(figure.fails for figure in figures)


def peak_or_none(device: torch.device) -> float | None:
    """Return the peak of the card in FLOPs per second; None if a CUDA error made the card unusable."""
    try:
        return peak(device)
    except Exception:
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", type=int, nargs="*", choices=sorted(PARTS), help="parts (default: all)")
    parser.add_argument("--case", type=int, nargs="*", help="numbers of cases of these parts, from 0 (default: all)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="after which a case is stopped")
    parser.add_argument("--check", action="store_true", help="only say whether there is a GPU")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU: torch finds no CUDA device here, and nothing was measured", file=sys.stderr)
        return 2
    device = torch.device("cuda")
    if chosen.check:
        print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}")
        return 0
    if (flops := peak_or_none(device)) is not None:
        print(f"{torch.cuda.get_device_name(device)}, bf16 products reach {flops / 1e12:,.0f} TFLOP/s", flush=True)
    failed, started = 0, time.monotonic()
    parts = chosen.only or [its for its in sorted(PARTS) if its != OF_SEVERAL or torch.cuda.device_count() > 1]
    for number in parts:
        began = time.monotonic()
        for case, part in enumerate(cases_of(number)):
            if chosen.case is not None and case not in chosen.case:
                continue
            if number == PROFILED and chosen.case != [case]:
                words = ["--only", str(number), "--case", str(case), "--seconds", str(chosen.seconds)]
                failed += subprocess.call([sys.executable, __file__, *words])
            else:
                failed += measure(number, case, part, device, chosen.seconds)
        print(f"part {number}, {time.monotonic() - began:,.0f} s", flush=True)
    if chosen.case is None and parts == [its for its in PARTS if its != OF_SEVERAL]:
        figure = Figure("minutes of all parts", (time.monotonic() - started) / 60, MINUTES)
        print(figure.line())
        failed += figure.fails
    if left := sorted(set(PARTS) - set(parts)):
        print(f"not run: part{'s'[: len(left) > 1]} {', '.join(map(str, left))}")
    print(f"{failed} figures fail" if failed else "every figure that was measured passes")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
