"""Part 9 of the GPU benchmark: our plain step compared with alternatives, on the same tokens in the same process.

The loops train a GPT of the same size in plain PyTorch, as a good engineer would write it: causal SDPA attention, fused
GELU and AdamW. The cross entropy is computed in chunks of tokens whose gradient is computed at once, so the logits of
all tokens never exist together. Every layer attends to all earlier tokens, which costs more than GPT-Neo's windows. The
weights are float32 under autocast, or bfloat16 with float32 master weights in the optimizer. Each block and the chunk
of the loss are compiled. The Trainer is transformers' own, with its defaults, its GPT-Neo and bf16.
"""

import contextlib
import functools
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from gpu_base import Clock, Figure, Shape, arithmetic, give_back, share_of_card
from gpu_steps import Case, timed, token_runs
from torch import Tensor, nn

STEPS = 6
CHUNK = 4096  # tokens of a chunk of the loss


@dataclass(frozen=True)
class Baseline:
    """An alternative way to train on the tokens of a case.

    Attributes:
        trainer: whether to use transformers' Trainer; otherwise a loop is used.
        half: whether the weights of the loop are bfloat16.
        whole: whether all tokens of a step are in one pass.
    """

    case: Case
    trainer: bool = False
    half: bool = False
    compiled: bool = False
    whole: bool = False

    @property
    def name(self) -> str:
        kind = "Trainer" if self.trainer else f"PyTorch, {'bf16 weights' if self.half else 'autocast'}"
        return f"{kind}{', compiled' if self.compiled else ''}{', one pass' if self.whole else ''}"


_SMALL, _LARGE = Case("125M", 4, 16, 512), Case("1.3B", 4, 16, 512)
# The Trainer compiles all layers at once, which takes longest: last. All tokens of the large one in one pass would not
# fit 80 GB.
BASELINES = (
    Baseline(_SMALL),
    Baseline(_SMALL, half=True),
    Baseline(_SMALL, compiled=True),
    Baseline(_SMALL, half=True, compiled=True),
    Baseline(_SMALL, half=True, compiled=True, whole=True),
    Baseline(_SMALL, trainer=True),
    Baseline(_LARGE),
    Baseline(_LARGE, half=True, compiled=True),
    Baseline(_LARGE, compiled=True),
    Baseline(_LARGE, half=True),
    Baseline(_LARGE, trainer=True),
    Baseline(_SMALL, trainer=True, compiled=True),
    Baseline(_LARGE, trainer=True, compiled=True),
)


def beside(baseline: Baseline, shape: Shape, device: torch.device) -> tuple[list[Figure], dict[str, Any]]:
    """Return the seconds of a baseline's step, its share of the card, and our plain step divided by it."""
    case, about = baseline.case, baseline.case.about
    ours = our_plain_step(case, shape, device)
    torch._dynamo.reset()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    step = trainer_step if baseline.trainer else loop_step
    seconds, first = step(baseline, shape, device)
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    give_back()
    figures = [
        Figure(f"{about}, {baseline.name}: seconds of a step", seconds),
        Figure(f"{about}, {baseline.name}: share of the card", share_of_card(shape, case.tokens, seconds, device)),
        Figure(f"{about}: our plain step over {baseline.name}", ours / seconds),
    ]
    told = {"ours": ours, "seconds": seconds, "first step": first, "allocated": memory}
    return figures, {f"{about}, {baseline.name}": told}


@functools.cache
def our_plain_step(case: Case, shape: Shape, device: torch.device) -> float:
    """Return the seconds of our plain step, measured once per process."""
    seconds: float = timed("plain", shape.model(device), token_runs(case, shape), device)["seconds"]
    give_back()
    share = share_of_card(shape, case.tokens, seconds, device)
    print(f"  {case.about}, our plain step: {seconds:.4f} s, share of the card {share:.3f}", flush=True)
    return seconds


class Block(nn.Module):
    """A layer of the GPT: causal attention and an MLP. Each follows a norm, and its result is added to its input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.before_attention = nn.LayerNorm(shape.hidden)
        self.attention = nn.Linear(shape.hidden, 3 * shape.hidden, bias=False)
        self.attended = nn.Linear(shape.hidden, shape.hidden)
        self.before_mlp = nn.LayerNorm(shape.hidden)
        self.wider = nn.Linear(shape.hidden, 4 * shape.hidden)
        self.narrower = nn.Linear(4 * shape.hidden, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.attention(self.before_attention(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0)
        x = x + self.attended(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.narrower(F.gelu(self.wider(self.before_mlp(x)), approximate="tanh"))


class Gpt(nn.Module):
    """A GPT with the sizes of a shape. The head is the embedding, and the forward pass returns the mean loss.

    Attributes:
        operands: type of the operands of the head's product.
        chunk: ``chunk_loss``, or its compiled form.
    """

    def __init__(self, shape: Shape, operands: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.positions = nn.Embedding(shape.context, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)
        self.operands = operands
        self.chunk: Callable[..., tuple[Tensor, Tensor, Tensor]] = chunk_loss

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss for targets (B, L), given inputs (B, L)."""
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        loss: Tensor = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
            self.norm(x).flatten(0, 1), self.tokens.weight, targets.flatten(), self.operands, self.chunk
        )
        return loss


def chunk_loss(hidden: Tensor, head: Tensor, targets: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scaled sum of a chunk's losses, and its gradients for the hidden states and for the head.

    Args:
        hidden: hidden states, (T, h).
        head: weights of the head, (V, h), of the same type.
        targets: target ids, (T,).
    """
    scores = torch.log_softmax(hidden @ head.T, -1, dtype=torch.float32)
    loss = F.nll_loss(scores, targets, reduction="sum") * scale
    if torch.compiler.is_compiling():  # one kernel makes all of it
        is_target = torch.arange(head.shape[0], device=head.device) == targets[:, None]
        delta = torch.where(is_target, scores.exp() - 1, scores.exp()) * scale
    else:
        delta = scores.exp_().mul_(scale)
        delta[torch.arange(len(targets), device=head.device), targets] -= scale
    half_delta = delta.to(hidden.dtype)
    return loss, half_delta @ head, half_delta.T @ hidden


class _ChunkedLoss(torch.autograd.Function):
    """The mean loss. The forward pass computes its gradient chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, operands: torch.dtype, chunk: Callable[..., Any]
    ) -> Tensor:
        to_hidden, to_head = torch.empty_like(hidden), torch.zeros_like(head, dtype=torch.float32)
        whole, multiplied = torch.zeros((), device=hidden.device), head.to(operands)
        with torch.autocast(hidden.device.type, enabled=False):
            for first in range(0, len(hidden), CHUNK):
                part = slice(first, first + CHUNK)
                loss, of_hidden, of_head = chunk(
                    hidden[part].to(operands), multiplied, targets[part], 1.0 / len(hidden)
                )
                whole += loss
                to_hidden[part] = of_hidden
                to_head += of_head
        ctx.save_for_backward(to_hidden, to_head.to(head.dtype))
        return whole

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        to_hidden, to_head = ctx.saved_tensors
        return to_hidden.mul_(delta), to_head.mul_(delta), None, None, None


def loop_step(baseline: Baseline, shape: Shape, device: torch.device) -> tuple[float, float]:
    """Return the seconds of a step of the loop (the median from the second step on), and of the first step."""
    torch.manual_seed(0)
    with device:
        model = Gpt(shape)
    if baseline.half:
        model.to(torch.bfloat16)
    if baseline.compiled:
        for block in model.blocks:
            block.compile()
        model.chunk = torch.compile(chunk_loss)
    parameters = list(model.parameters())
    masters = [nn.Parameter(its.detach().float()) for its in parameters] if baseline.half else parameters
    optimizer = torch.optim.AdamW(masters, 1e-6, fused=device.type == "cuda")
    rows = _rows(baseline.case, shape, device)
    passes = [rows] if baseline.whole else list(rows.split(baseline.case.records))

    def take() -> None:
        for ids in passes:
            with contextlib.nullcontext() if baseline.half else arithmetic("bf16", device):
                loss = model(ids[:, :-1], ids[:, 1:]) / len(passes)
            loss.backward()
        if baseline.half:
            for master, parameter in zip(masters, parameters, strict=True):
                assert parameter.grad is not None
                master.grad = parameter.grad.float()
        optimizer.step()
        if baseline.half:
            torch._foreach_copy_([its.detach() for its in parameters], [its.detach() for its in masters])
        model.zero_grad(set_to_none=True)
        optimizer.zero_grad(set_to_none=True)

    clock, seconds = Clock(device), []
    for _ in range(STEPS):
        began = clock()
        take()
        seconds.append(clock() - began)
    return statistics.median(seconds[1:]), seconds[0]


def _rows(case: Case, shape: Shape, device: torch.device) -> Tensor:
    """Return the token ids of a case's records, (users x records, length + 1)."""
    records = [list(tokens.ids) for run in token_runs(case, shape) for user in run for tokens in user]
    return torch.tensor(records, device=device)


def trainer_step(baseline: Baseline, shape: Shape, device: torch.device) -> tuple[float, float]:
    """Return the seconds of a step of transformers' Trainer (the median from the second step on), and of the first
    step."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    case, clock = baseline.case, Clock(device)
    seconds: list[float] = []

    class Timed(TrainerCallback):  # type: ignore[misc]
        began = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = clock()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(clock() - self.began)

    # A row has one token more than are predicted.
    rows = _rows(case, shape, torch.device("cpu")).repeat(STEPS, 1)
    examples = [{"input_ids": ids, "labels": ids} for ids in rows]
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            bf16=True,
            use_cpu=device.type == "cpu",
            per_device_train_batch_size=case.records,
            gradient_accumulation_steps=case.users,
            max_steps=STEPS,
            torch_compile=baseline.compiled,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(shape.default_model(device), settings, train_dataset=examples, callbacks=[Timed()]).train()
    return statistics.median(seconds[1:]), seconds[0]
