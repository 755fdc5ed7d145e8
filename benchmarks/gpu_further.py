"""Parts 3 to 5 of the GPU benchmark: example DP beside Opacus, scoring, and what a step does besides its gradients."""

import copy
import itertools
import random
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_base import Clock, Figure, Shape, recovering
from transformers import GPTNeoForCausalLM

from heldin.defenses.choices import NoiseGenerator, PoissonSampler
from heldin.defenses.noise import gaussian
from heldin.defenses.sampling import Draws
from heldin.finetune.plain import plain_batch_gradient
from heldin.finetune.private import private_gradient
from heldin.finetune.units import PrivateRecords, PrivateTraining, plan_private_training
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import batches_by_length, tokens_per_batch
from heldin.models.score_cache import ScoreCache
from heldin.models.tiny import train_tokenizer
from heldin.white_box.opacus_step import OpacusStep
from heldin.white_box.power import trainer_mechanism

EXAMPLE_RATIO, SCORING_RATIO, HOST_SECONDS = 1.5, 1.25, 0.2
STEPS = 12
KEY = bytes(32)


def example_dp(shape: Shape, records: int, length: int, device: torch.device) -> tuple[list[Figure], dict[str, Any]]:
    """An example-level step over a plain one and over Opacus, all of the same records, float32 on every side.

    Opacus wants a row of position ids for each record, and ghost clipping refuses tied weights: it gets a model whose
    head is its own, as ours does in that comparison.
    """
    training, sequences = _of_all_records(records, length, shape.vocabulary)
    model = shape.model(device).train()
    untied = copy.deepcopy(model)
    untied.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    batch = list(sequences)
    ways: dict[str, tuple[GPTNeoForCausalLM, Callable[[GPTNeoForCausalLM, int], object]]] = {
        "plain": (model, lambda its, _: plain_batch_gradient(its, batch, records, "fp32")),
        "ours": (model, lambda its, step: private_gradient(its, training, step, sequences)),
        "Opacus, hooks": (model, lambda its, step: OpacusStep()(its, training, step, sequences)),
        "ours, untied": (untied, lambda its, step: private_gradient(its, training, step, sequences)),
        "Opacus, ghost": (untied, lambda its, step: OpacusStep("ghost")(its, training, step, sequences)),
    }
    taken: dict[str, dict[str, Any]] = {}
    for name, (its, step) in ways.items():
        with recovering(name, taken):
            taken[name] = {"seconds": _median(lambda n, m=its, s=step: s(m, n), its, device)}
    about = f"{records} x {length}"
    found = [
        _ratio(f"example DP, {about}: step over plain", "ours", "plain", taken, EXAMPLE_RATIO),
        _ratio(f"example DP, {about}: step over Opacus with hooks", "ours", "Opacus, hooks", taken, 1.0),
        _ratio(
            f"example DP, {about}: step over Opacus with ghost clipping", "ours, untied", "Opacus, ghost", taken, 1.0
        ),
    ]
    return found, {about: taken}


def _of_all_records(records: int, length: int, vocabulary: int) -> tuple[PrivateTraining, list[list[int]]]:
    """A plan that draws every record in every step, and records of this many predicted tokens."""
    mechanism = trainer_mechanism("example", PoissonSampler(rate=1.0), steps=STEPS, delta=1e-5, target_epsilon=8.0)
    numbers = random.Random(1)
    sequences = [[numbers.randrange(1, vocabulary) for _ in range(length + 1)] for _ in range(records)]
    names = [f"record {number}" for number in range(records)]
    lengths = [length + 1] * records
    kept = PrivateRecords(names, names, lengths)
    return plan_private_training(mechanism, KEY, kept, NoiseGenerator.PHILOX, micro_records=records), sequences


def _median(step: Callable[[int], object], model: GPTNeoForCausalLM, device: torch.device) -> float:
    """Seconds of a step with its optimizer's, the median from the second on."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-6, fused=True if device.type == "cuda" else None)
    clock = Clock(device)
    seconds = []
    for number in range(STEPS):
        began = clock()
        step(number)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(clock() - began)
    return statistics.median(seconds[1:])


def _ratio(what: str, one: str, other: str, taken: dict[str, dict[str, Any]], limit: float | None) -> Figure:
    # What did not fit is no success: its figure is infinite, or not a number, and fails.
    seconds = [taken[name].get("seconds", float("inf")) for name in (one, other)]
    return Figure(what, seconds[0] / seconds[1], limit)


def scoring(shape: Shape, texts: int, words: int, device: torch.device) -> tuple[list[Figure], dict[str, Any]]:
    """Scoring through an empty cache over bare forward passes of the same batches, in both precisions.

    Scoring tokenizes, the bare passes do not.
    """
    numbers = random.Random(2)
    known = ["".join(numbers.choices("abcdefghijklmnopqrstuvwxyz", k=numbers.randint(2, 9))) for _ in range(2000)]
    made = [" ".join(numbers.choices(known, k=numbers.randint(words // 2, words))) for _ in range(texts)]
    # Its tokens are few of the model's vocabulary, which is what a pass costs.
    tokenizer = train_tokenizer(made[:1000], 2048)
    found: list[Figure] = []
    told: dict[str, Any] = {"texts": texts}
    for precision in ("fp32", "bf16"):
        model = shape.model(device).eval()
        model = model if precision == "fp32" else model.to(torch.bfloat16)
        lm = LanguageModel(model, tokenizer, "random", f"random {precision}")
        clock = Clock(device)
        began = clock()
        windows = _windows(lm, made)
        tokenizing = clock() - began
        _forward(lm, windows[: max(1, len(windows) // 20)])  # compiles and allocates
        began = clock()
        _forward(lm, windows)
        bare = clock() - began
        with tempfile.TemporaryDirectory() as folder:
            cache = ScoreCache(Path(folder))
            began = clock()
            cache.scores(lm, made)
            scored = clock() - began
            cache.close()
        limit = SCORING_RATIO if precision == "bf16" else None
        found.append(
            Figure(f"scoring {texts:,} texts in {precision}, cache included: over bare passes", scored / bare, limit)
        )
        tokens = sum(map(len, windows))
        told[precision] = {"bare": bare, "scored": scored, "tokenizing on one core": tokenizing, "tokens": tokens}
    return found, told


def _windows(lm: LanguageModel, texts: list[str]) -> list[list[int]]:
    ids = lm.tokenizer(texts, add_special_tokens=False)["input_ids"]
    return [its[start : start + lm.context] for its in ids for start in range(0, len(its), lm.context)]


@torch.inference_mode()
def _forward(lm: LanguageModel, windows: list[list[int]]) -> None:
    """Bare passes in the batches of scoring."""
    for batch in batches_by_length([len(its) for its in windows], max_tokens=tokens_per_batch(lm.model)):
        longest = max(len(windows[i]) for i in batch)
        padded = [windows[i] + [0] * (longest - len(windows[i])) for i in batch]
        lm.model(input_ids=torch.tensor(padded).to(lm.device), use_cache=False)


def beside_gradients(
    shape: Shape, users: int, cohort: int, device: torch.device
) -> tuple[list[Figure], dict[str, Any]]:
    """Noise of both generators and Adam on all of a model's tensors; draws of so many users on the host."""
    model = shape.model(device)
    parameters = dict(model.named_parameters())
    clock = Clock(device)
    told: dict[str, Any] = {}
    for generator in (NoiseGenerator.PHILOX, NoiseGenerator.SECURE):
        seconds = []
        for step in range(4 if generator is NoiseGenerator.PHILOX else 1):
            began = clock()
            for name, parameter in parameters.items():
                parameter.grad = gaussian(generator, KEY, step, name, parameter.shape, 1.0, device)
            seconds.append(clock() - began)
        told[f"noise, {generator.name.lower()}"] = statistics.median(seconds)
    told["optimizer"] = _median(lambda _: _some_gradients(parameters), model, device)
    names = [f"user {number}" for number in range(users)]
    began = clock()
    draws = Draws(PoissonSampler(rate=cohort / users), KEY, names, 1000)
    drawn = [len(draws.at(0))]
    told["first draw"] = clock() - began
    seconds = []
    for step in range(1, STEPS):
        began = clock()
        drawn.append(len(draws.at(step)))
        seconds.append(clock() - began)
    told["cohorts"] = drawn
    host = statistics.median(seconds)
    about = f"{users:,} users, cohort {cohort:,}: seconds of a draw on the host"
    figures = [Figure(about, host, HOST_SECONDS)]
    figures += [Figure(f"seconds of {name}", value) for name, value in told.items() if isinstance(value, float)]
    return figures, told


def _some_gradients(parameters: dict[str, torch.nn.Parameter]) -> None:
    for parameter, value in zip(parameters.values(), itertools.repeat(1e-3)):
        parameter.grad = torch.full_like(parameter, value)
