"""Correctness and speed of private steps on a GPU: `make gpu`, or `PYTHONPATH=src python benchmarks/gpu.py --only 2`.

No network and no weights: models are random. Each part appends a line to benchmarks/gpu.jsonl (device, driver,
versions, commit), says pass or fail for each figure, and renews the table of GPUs in RESULTS.md; the exit code is 1 if
a figure or a part fails and 2 where there is no GPU. Parts 1, 2 and 5 need torch, transformers, scipy and pydantic and
nothing else; 3 also dp-accounting and Opacus, 4 the client of endpoints, 6 and 7 all that heldin installs.

1. Every engine: V = 50,257 tied, 4 layers, with TF32 switched on outside. In float32 within 1e-4 of plain float64
   backward passes on the CPU; in bfloat16 within 2e-2 of plain backward passes of that precision, and beside it how far
   both are from float64, which is the passes' own rounding; every contribution at most C (1 + 1e-4).
2. Steps of random 125M and 1.3B models over users of 16 x 512 and 16 x 1,024 tokens: a plain step (same loss, same
   attention, same passes), "auto" by the functions and with the noise of training, unit by unit. Medians of steps 2 to
   12 with Adam; nothing waits within a step but what waits in training. Peak memory, for one case of each shape beside
   what a rehearsal without numbers said it would be.
3. Example DP, 32 records of 512 tokens at 125M: over plain training and over Opacus (hooks, ghost clipping).
4. Scoring 20,000 texts through the score cache, tokenizing included, over bare forward passes, which are given tokens;
   in float32 and in bfloat16.
5. Noise and optimizer of a 125M step, and the host's part of a ULS step of 342,477 users with cohorts of 1,024: who is
   drawn, which records, their passes, the keys of the noise.
6. Whole runs: a 125M shape pre-trained on Enron's public users (without HELDIN_DATA_DIR on the built-in corpus's),
   fine-tuned without a defense and under ULS at epsilon 8, in both precisions, and attacked.
7. With several GPUs: ULS steps at 125M by replicas and in shards over those of one GPU.
"""

import argparse
import contextlib
import json
import math
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from gpu_base import SHAPES, Figure, Shape, give_back
from gpu_table import renew

LINES = Path(__file__).with_name("gpu.jsonl")
RESULTS = Path(__file__).with_name("RESULTS.md")
MINUTES = 25  # of all parts of one GPU


# Their modules are imported when they run, for what they need is not everywhere.
def part_1(device: torch.device) -> tuple[list[Figure], dict[str, Any]]:
    from gpu_correctness import correctness

    return correctness(Shape(4, 768, 12, context=512), 512, device), {}


def part_2(device: torch.device) -> tuple[list[Figure], dict[str, Any]]:
    from gpu_steps import all_steps

    return all_steps(device)


def part_3(device: torch.device) -> tuple[list[Figure], dict[str, Any]]:
    from gpu_examples import example_dp

    return example_dp(SHAPES["125M"], 32, 512, device)


def part_4(device: torch.device) -> tuple[list[Figure], dict[str, Any]]:
    from gpu_scoring import scoring

    return scoring(SHAPES["125M"], 20_000, 120, device)


def part_5(device: torch.device) -> tuple[list[Figure], dict[str, Any]]:
    from gpu_beside import beside_gradients

    return beside_gradients(SHAPES["125M"], 342_477, 1024, device)


def part_6(_: torch.device) -> tuple[list[Figure], dict[str, Any]]:
    from gpu_whole import RUN_SHAPE, corpus_of, whole_runs

    return whole_runs(corpus_of(), RUN_SHAPE, 256)


def part_7(device: torch.device) -> tuple[list[Figure], dict[str, Any]]:
    from gpu_whole import several

    # The figure to reach is of two; where there are more, of all as well.
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    for processes in sorted({2, torch.cuda.device_count()}):
        found, told = several(SHAPES["125M"], device, processes, "bf16")
        figures += found
        details[f"{processes} processes"] = told
    return figures, details


PARTS: dict[int, Callable[[torch.device], tuple[list[Figure], dict[str, Any]]]] = {
    1: part_1,
    2: part_2,
    3: part_3,
    4: part_4,
    5: part_5,
    6: part_6,
    7: part_7,
}
OF_SEVERAL = 7


def attempted(
    part: Callable[[torch.device], tuple[list[Figure], dict[str, Any]]], device: torch.device
) -> tuple[list[Figure], dict[str, Any]]:
    """What a part measured; if it ends in an error, that is told and fails, and the parts after it run."""
    try:
        return part(device)
    except Exception as error:
        what, told = (
            f"ended in {type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}",
            traceback.format_exc(),
        )
    # Out here, where the error is gone, whose traceback would keep the part's tensors. After some errors CUDA gives
    # nothing back any more.
    print(told, file=sys.stderr)
    with contextlib.suppress(RuntimeError):
        give_back()
    return [Figure(what, math.inf, 0.0)], {"failed": told}


def provenance(device: torch.device) -> dict[str, Any]:
    """On what and with what a part was measured."""
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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", type=int, nargs="*", choices=sorted(PARTS), help="parts (default: all)")
    parser.add_argument("--check", action="store_true", help="only say whether there is a GPU")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU: torch finds no CUDA device here, and nothing was measured", file=sys.stderr)
        return 2
    device = torch.device("cuda")
    if chosen.check:
        print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}")
        return 0
    failed, started = 0, time.monotonic()
    parts = chosen.only or [its for its in sorted(PARTS) if its != OF_SEVERAL or torch.cuda.device_count() > 1]
    for number in parts:
        began = time.monotonic()
        figures, details = attempted(PARTS[number], device)
        seconds = round(time.monotonic() - began, 1)
        print(f"part {number}, {seconds:,.0f} s", flush=True)
        print("\n".join(figure.line() for figure in figures), flush=True)
        failed += sum(figure.fails for figure in figures)
        told = {"part": number, "seconds": seconds, "figures": [asdict(figure) for figure in figures], **details}
        with LINES.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({**provenance(device), **told}) + "\n")
        renew(RESULTS, LINES)
    if parts == [its for its in PARTS if its != OF_SEVERAL]:
        figure = Figure("minutes of all parts", (time.monotonic() - started) / 60, MINUTES)
        print(figure.line())
        failed += figure.fails
    if left := sorted(set(PARTS) - set(parts)):
        print(f"not run: part{'s'[: len(left) > 1]} {', '.join(map(str, left))}")
    print(f"{failed} figures fail" if failed else "every figure that was measured passes")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
