"""The power of the positive control of planted audits against three filters, by simulation, next to real trainings.

``trainings`` trains a tiny model on made-up users and canary users, both honestly and with each filter, at several
learning rates. It prints the effect of a canary user divided by the effect of a real row, each in standard deviations
of a gain. ``planting.positive_control.LEFT`` has the largest of these ratios.

``table`` simulates audits with such effects, and prints the table in docs/planted-audits.md.

PYTHONPATH=. python benchmarks/control_power.py trainings EXAMPLE [--repeats 5]   # EXAMPLE: as for positive_control.py
PYTHONPATH=. python benchmarks/control_power.py table
"""

import argparse
import copy
from pathlib import Path

import numpy as np
import torch
from positive_control import LENGTH, Setting, control_of, draw, texts_of
from scipy import special

from heldin.models.loading import LanguageModel
from heldin.models.opening import load_language_model
from heldin.planting.positive_control import LEFT, Filter, positive_control

AUROCS = (0.55, 0.6, 0.65, 0.7, 0.8)
CANARIES = (60, 200, 600)
ROWS = 1000  # real rows in the sample, of each kind
ROUNDS = 2000
WEIGHT, NATS = 0.05, 4.0
EPOCHS, RATES = 2, (3e-4, 6e-4, 1e-3, 2e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    trainings = commands.add_parser("trainings")
    trainings.add_argument("example", type=Path)
    trainings.add_argument("--repeats", type=int, default=8)
    commands.add_parser("table")
    options = parser.parse_args()
    if options.command == "table":
        print(table(), end="")
        return
    torch.set_num_threads(1)
    base = load_language_model(str(options.example / "base"))
    users = list(texts_of(options.example).values())
    print(
        "| filter | learning rate | AUROC of real rows | of canary users | left of the effect |\n|---|---|---|---|---|"
    )
    for kind in (None, *Filter):
        for rate in RATES:
            rows, canaries = np.median([one(base, users, kind, rate, seed) for seed in range(options.repeats)], axis=0)
            left = left_of(rows, canaries)
            print(f"| {kind or 'none'} | {rate:g} | {rows:.3f} | {canaries:.3f} | {left:.2f} |", flush=True)


def one(
    base: LanguageModel, users: list[list[str]], kind: Filter | None, rate: float, seed: int
) -> tuple[float, float]:
    """Return the AUROC of real rows and the AUROC of canary users after a training with a filter."""
    setting = draw(base, users, "unseen_token", seed)
    facts = control_of(base, train(base, setting, kind, rate, seed), setting)
    return facts.rows_auroc or 0.5, facts.canary_auroc or 0.5


def left_of(rows: float, canaries: float) -> float:
    """Return the effect of a canary user divided by that of a real row, each in standard deviations of a gain."""
    return float(special.ndtri(canaries) / special.ndtri(rows))


def train(base: LanguageModel, setting: Setting, kind: Filter | None, rate: float, seed: int) -> LanguageModel:
    """Train a copy of the model on plain batches, with a filter."""
    torch.manual_seed(seed)
    model = copy.deepcopy(base.model).train()
    dice = np.random.default_rng(10_000 + seed)
    planted = [row for rows, held_in in zip(setting.canaries, setting.held_in, strict=True) if held_in for row in rows]
    texts = [*((text, False) for rows in setting.users for text in rows), *((text, True) for text in planted)]
    encoded = [(base.tokenizer(text)["input_ids"][:LENGTH], is_canary) for text, is_canary in texts]
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    step = 0
    for _ in range(EPOCHS):
        order = dice.permutation(len(encoded))
        for first in range(0, len(order), 16):
            rows = [encoded[i] for i in order[first : first + 16]]
            loss_of(model, rows, kind, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
    return LanguageModel(model.eval(), base.tokenizer, "trained", f"{kind} {rate} {seed}")


def loss_of(model: torch.nn.Module, rows: list[tuple[list[int], bool]], kind: Filter | None, step: int) -> torch.Tensor:
    width = max(len(row) for row, _ in rows)
    ids = torch.tensor([row + [0] * (width - len(row)) for row, _ in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row, _ in rows])
    logits = model(input_ids=ids, attention_mask=mask).logits
    each = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    weight = mask[:, 1:].float()
    total = weight.sum()
    canary = torch.tensor([is_canary for _, is_canary in rows])[:, None]
    match kind:
        case Filter.TOKEN_LOSS:
            weight = weight * (each.detach() <= NATS)
        case Filter.UNLEARNING:
            weight = torch.where(canary, weight * (1 if step % 2 else -1), weight)
        case Filter.DOWN_WEIGHTING:
            weight = torch.where(canary, weight * WEIGHT, weight)
    return (each * weight).sum() / total


def table() -> str:
    """Return, as Markdown, the share of simulated audits in which the control notices each filter."""
    dice = np.random.default_rng(0)
    lines = [
        "| filter | canary users |" + "".join(f" {area:g} |" for area in AUROCS) + "\n",
        "|---|---|" + "---|" * 5 + "\n",
    ]
    for kind in Filter:
        for canaries in CANARIES:
            shares = [share_noticed(area, LEFT[kind], canaries, dice) for area in AUROCS]
            lines.append(f"| {kind} | {canaries} |" + "".join(f" {100 * share:.0f} % |" for share in shares) + "\n")
    return "".join(lines)


def share_noticed(
    area: float, left: float, canaries: int, dice: np.random.Generator, *, rows: int = ROWS, rounds: int = ROUNDS
) -> float:
    """Return the share of simulated audits in which the control contradicts the condition.

    Args:
        area: AUROC of real rows.
        left: effect of a canary user divided by that of a real row.
        canaries: number of canary users; a coin decides whether each is a member.
    """
    effect, noticed = np.sqrt(2) * float(special.ndtri(area)), 0
    for _ in range(rounds):
        held_in = int(dice.binomial(canaries, 0.5))
        trained, untrained = dice.normal(effect, size=rows), dice.normal(size=rows)
        inside, outside = dice.normal(left * effect, size=held_in), dice.normal(size=canaries - held_in)
        noticed += positive_control(trained, untrained, inside, outside).outcome.contradicts
    return noticed / rounds


if __name__ == "__main__":
    main()
