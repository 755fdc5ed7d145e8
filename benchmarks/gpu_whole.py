"""Parts 6 and 7 of the GPU benchmark: whole runs of a 125M shape, and steps on several GPUs divided by steps on one."""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from gpu_base import Clock, Figure, Shape, give_back, share_of_card

import heldin
from heldin.defenses.choices import NoiseGenerator
from heldin.defenses.samplers import PoissonSampler
from heldin.finetune.passes import Passes
from heldin.finetune.precision import Arithmetic, autocast
from heldin.finetune.preparation import optimizer_of
from heldin.finetune.private import private_gradient
from heldin.finetune.ranks import joined, rank
from heldin.finetune.recipe import Precision, Recipe
from heldin.finetune.sharded_gradients import sharded_private_gradient
from heldin.finetune.sharding import spread
from heldin.finetune.units import PrivateRecords, PrivateTraining, plan_private_training
from heldin.models.tokens import Tokens
from heldin.white_box.power import trainer_mechanism

PRECISIONS = ("fp32", "bf16")
LOSS_RATIO, TWO_GPUS = 1.01, 0.56
# GPT-Neo 125M but for vocabulary and context; the tokenizer is learned from public users.
RUN_SHAPE = {"vocabulary": 16_384, "context": 512, "hidden": 768, "layers": 12, "heads": 12, "window": 256}
DEFENSES: dict[str, dict[str, Any]] = {
    "none": {"kind": "none"},
    "uls": {
        "kind": "uls",
        "population": 200,
        "cohort": 16,
        "group_size": 4,
        "steps": 60,
        "delta": 1e-3,
        "target_epsilon": 8,
    },
}
STEPS, USERS, RECORDS, LENGTH = 7, 16, 16, 512
NOISE = 1e-3  # noise multiplier at which the norm of a step's gradient shows both its sum and its noise
DIFFERENCE = {"fp32": 1e-4, "bf16": 2e-2}


def corpus_of() -> dict[str, Any]:
    """Return Enron's config if the environment names the data, else the built-in corpus's."""
    folder = os.environ.get("HELDIN_DATA_DIR")
    if folder is None:
        parameters = {"users": 400, "mean_records": 40, "min_records": 20}
        return {
            "source": {"kind": "synthetic", "parameters": parameters},
            "users": {"min_records": 20, "fraction": 0.5},
        }
    columns = {"user": "user", "text": "text", "id": "id", "date": "date"}
    return {
        "source": {"kind": "jsonl", "path": f"{folder}/enron_by_sender.jsonl.gz", "columns": columns},
        "users": {"include": ["*@enron.com"], "min_records": 20, "max_records": 400, "fraction": 0.5},
    }


def whole_runs(
    corpus: Mapping[str, Any],
    shape: Mapping[str, int],
    length: int,
    defenses: Mapping[str, Mapping[str, Any]] = DEFENSES,
    *,
    device: torch.device,
) -> tuple[list[Figure], dict[str, Any]]:
    """Run whole runs: pre-training on public users, fine-tuning plain and with ULS in both precisions, and attacks."""
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for (kind, defense), precision in itertools.product(defenses.items(), PRECISIONS):
            name = f"{kind}, {precision}"
            config = _config(corpus, shape, length, defense, precision)
            found = heldin.run(config, out=Path(folder) / name.replace(", ", "-"), quiet=True)
            assert found is not None
            told[name] = _taken(found)
    figures = []
    sizes = Shape(shape["layers"], shape["hidden"], shape["heads"], shape["vocabulary"], shape["context"])
    for kind in defenses:
        whole, half = (told[f"{kind}, {precision}"] for precision in PRECISIONS)
        ratio = max(half["loss"] / whole["loss"], whole["loss"] / half["loss"])
        figures.append(Figure(f"{kind}: held-out loss of one precision over the other's", ratio, LOSS_RATIO))
        figures += [Figure(f"{kind}, {p}: AUROC", told[f"{kind}, {p}"]["auroc"]) for p in PRECISIONS]
        figures.append(Figure(f"{kind}: seconds of steps, bf16 over fp32", half["seconds"] / whole["seconds"]))
        for p in PRECISIONS:
            a_second = told[f"{kind}, {p}"]["tokens a second"]
            figures.append(Figure(f"{kind}, {p}: tokens a second", a_second))
            figures.append(Figure(f"{kind}, {p}: share of the card", share_of_card(sizes, a_second, 1.0, device)))
    return figures, {"source": corpus["source"]["kind"], "runs": told}


def _config(
    corpus: Mapping[str, Any], shape: Mapping[str, int], length: int, defense: Mapping[str, Any], precision: str
) -> dict[str, Any]:
    learned = {
        "batch_size": 32,
        "learning_rate": 6e-4,
        "warmup_steps": 100,
        "sequence_length": length,
        "select": "last",
    }
    return {
        "name": "gpu",
        "seed": 0,
        "corpus": dict(corpus),
        "model": {"pretrain": {"shape": dict(shape), "max_records_per_user": 40, "recipe": {**learned, "epochs": 1}}},
        "finetune": {
            "epochs": 2,
            "batch_size": 8,
            "learning_rate": 3e-4 if defense["kind"] == "none" else 1e-4,
            "warmup_steps": 10,
            "sequence_length": length,
            "evaluations": 2,
            "select": "last",
            "precision": precision,
        },
        "defense": dict(defense),
        "attack": {"max_characters": 2000},
    }


def _taken(found: "heldin.AuditResult") -> dict[str, Any]:
    record = found.record
    assert record.training is not None
    assert record.effort is not None
    its, effort = record.primary().auroc, record.effort
    return {
        "loss": record.training.curve[-1].held_out_loss,
        "auroc": its.value,
        "interval": [its.lower, its.upper],
        "seconds": effort.step_seconds,
        "tokens a second": effort.tokens_per_second,
        "peak": effort.peak_memory,
        "devices": effort.devices,
    }


def several(
    shape: Shape, device: torch.device, processes: int, precision: Arithmetic
) -> tuple[list[Figure], dict[str, Any]]:
    """Measure ULS steps on the same users by one process, by replicas, and in shards, with torchrun."""
    taken: dict[str, Any] = {}
    give_back()  # or this process would hold a part of the first GPU's memory
    for name, count, shard in (("one", 1, 0), ("replicas", processes, 0), ("shards", processes, processes)):
        taken[name] = _started(shape, device, count, shard, precision)
    limits = {"replicas": TWO_GPUS if processes == 2 else None, "shards": None}
    figures = []
    for name, limit in limits.items():
        its, one = taken[name], taken["one"]
        figures.append(Figure(f"{processes} {name}: step over one process's", its["seconds"] / one["seconds"], limit))
        apart = max(abs(a / b - 1) for a, b in zip(its["norms"], one["norms"], strict=True))
        told = f"{processes} {name}: relative difference of norms to one process's"
        figures.append(Figure(told, apart, DIFFERENCE[precision]))
    if device.type == "cuda":
        peak = taken["shards"]["peak"] / taken["one"]["peak"]
        figures.append(Figure(f"{processes} shards: peak memory over one process's", peak))
    return figures, {"processes": processes, "several": taken}


def _started(shape: Shape, device: torch.device, processes: int, shard: int, precision: Arithmetic) -> dict[str, Any]:
    asked = json.dumps([vars(shape), device.type, shard, precision])
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run(
        [sys.executable, *launch, __file__, asked],
        env={**os.environ, "HELDIN_DEVICE": device.type, "PYTHONPATH": _path()},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _path() -> str:
    return os.pathsep.join([str(Path(__file__).resolve().parents[1] / "src"), os.environ.get("PYTHONPATH", "")])


def _steps(shape: Shape, kind: str, shard: int, precision: Arithmetic) -> dict[str, Any] | None:
    """Return, in the first process, medians of the steps and the norms of their gradients; None in all others."""
    with joined():
        device = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else torch.device(kind)
        recipe = Recipe(learning_rate=1e-6, precision=Precision.FP32, shard=shard or None)
        model = shape.model(torch.device("cpu"))
        sequences, private = _of_users(shape)
        its = spread(model, recipe)
        if its is None:
            model.to(device)
        passes, clock, seconds, norms = Passes(RECORDS), Clock(device), [], []
        optimizer = optimizer_of(model, recipe)
        for step in range(STEPS):
            began = clock()
            # Of shards no half-precision copies are kept: they would outlive the weights that they were made of.
            with autocast(precision, device, keeps_casts=its is None):
                if its is None:
                    private_gradient(model, private, step, sequences, passes)
                else:
                    sharded_private_gradient(model, private, step, sequences, passes, its)
            optimizer.step()
            seconds.append(clock() - began)
            square = _square(model)
            if its is not None:
                its.over_members([square])
            norms.append(float(square.sqrt()))
            optimizer.zero_grad(set_to_none=True)
        peak = torch.cuda.max_memory_allocated(device) if kind == "cuda" else None
        told = {"seconds": statistics.median(seconds[1:]), "norms": norms, "peak": peak}
        return told if rank() == 0 else None


def _square(model: torch.nn.Module) -> torch.Tensor:
    total = torch.zeros(1, dtype=torch.float64, device=next(model.parameters()).device)
    for parameter in model.parameters():
        if parameter.grad is not None:
            grad = getattr(parameter.grad, "to_local", lambda p=parameter: p.grad)()
            total += grad.double().square().sum()
    return total


def _of_users(shape: Shape) -> tuple[Sequence[Tokens], PrivateTraining]:
    length = min(LENGTH, shape.context - 1)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, shape.vocabulary, (USERS * RECORDS, length + 1), generator=generator).tolist()
    names, users = zip(*((f"r{i}", f"u{i // RECORDS}") for i in range(len(rows))), strict=True)
    sampler = PoissonSampler(rate=1.0)
    mechanism = trainer_mechanism("uls", sampler, steps=STEPS, delta=1e-5, group_size=RECORDS, noise_multiplier=NOISE)
    records = PrivateRecords(list(names), list(users), [len(its) for its in rows])
    return list(map(Tokens, rows)), plan_private_training(mechanism, bytes(32), records, NoiseGenerator.PHILOX)


if __name__ == "__main__":
    _shape, _kind, _shard, _precision = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    if (_told := _steps(Shape(**_shape), _kind, _shard, _precision)) is not None:
        print(json.dumps(_told), flush=True)
    # At Python's end a thread of a process group that still joins would abort a process that has said all.
    os._exit(0)
