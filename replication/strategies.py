"""How well rules choose cohort and group size at a compute budget, measured on a finished grid of both.

Charles et al. (2024), Appendix F.1, Figures 14 and 15: the loss of each rule's choice minus the least loss at the
budget.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from heldin.base.coins import keyed_order, seed_key
from heldin.base.errors import InputError
from heldin.base.progress import Reporter
from heldin.corpus.split import Part, Role
from heldin.corpus.store import documents_of
from heldin.defenses.accounting.heuristics import BudgetChoice, estimate_and_double
from heldin.finetune.batches import encode
from heldin.finetune.gradient_norms import SAMPLED_USERS, median_user_norm
from heldin.record.document import read_record
from heldin.record.sweep import read_sweep
from heldin.stages.sides.corpus import read_corpus
from heldin.stages.sides.data import prepare_data
from heldin.stages.train.models import base_model
from heldin.stages.train.plan import read_run_config
from replication.grid import grid_of

COHORT, GROUP, EPSILON = "defense.cohort", "defense.group_size", "defense.target_epsilon"
ORACLE, DOUBLE, RANDOM, MAX_COHORT, MAX_GROUP = (
    "greedy local oracle",
    "Estimate-and-Double",
    "random split",
    "largest cohort",
    "largest group size",
)
Split = tuple[int, int]  # group size, cohort


@dataclass(frozen=True)
class Shortfall:
    """The loss that a rule gives away at one budget.

    Attributes:
        epsilon: epsilon of the guarantee.
        budget: number of gradients per step.
        rule: name of the rule.
        chosen: group size and cohort that the rule chooses; None for a random split, whose loss is the mean over the
            splits.
        loss: loss of the choice minus the least loss at the budget, in nats per token.
    """

    epsilon: float
    budget: int
    rule: str
    chosen: Split | None
    loss: float


def shortfalls(
    losses: Mapping[Split, float], noise: Mapping[int, float], norm: Callable[[int], float], epsilon: float
) -> list[Shortfall]:
    """Return the shortfall of every rule at every budget that has at least two splits.

    Args:
        losses: losses by group size and cohort, which are powers of two.
        noise: noise multiplier by cohort.
        norm: function L(G) that returns the clip norm for a group size.
        epsilon: epsilon of the guarantee.
    """
    start = (min(g for g, _ in losses), min(m for _, m in losses))
    found = []
    for budget in sorted({g * m for g, m in losses}):
        splits = {split: loss for split, loss in losses.items() if split[0] * split[1] == budget}
        if len(splits) < 2:
            continue
        least = min(splits.values())
        doubled = estimate_and_double(
            norm, lambda cohort: noise.get(cohort, math.inf), budget, BudgetChoice(start[0], start[1])
        )[-1]
        chosen: dict[str, Split | None] = {
            ORACLE: _oracle(losses, start, budget),
            DOUBLE: (doubled.group_size, doubled.cohort),
            RANDOM: None,
            MAX_COHORT: max(splits, key=lambda its: its[1]),
            MAX_GROUP: max(splits, key=lambda its: its[0]),
        }
        for rule, split in chosen.items():
            if split is None:
                found.append(Shortfall(epsilon, budget, rule, None, statistics.mean(splits.values()) - least))
            elif split in splits:  # a rule may leave the grid
                found.append(Shortfall(epsilon, budget, rule, split, splits[split] - least))
    return found


def _oracle(losses: Mapping[Split, float], start: Split, budget: int) -> Split:
    """Double group size or cohort, whichever gives the lower loss, until the budget is spent."""
    group, cohort = start
    while group * cohort < budget:
        ways = [split for split in ((2 * group, cohort), (group, 2 * cohort)) if split in losses]
        if not ways:
            return group, cohort
        group, cohort = min(ways, key=lambda split: losses[split])
    return group, cohort


def of_sweep(folder: Path, reporter: Reporter) -> tuple[Shortfall, ...]:
    """Return the shortfall of every rule in a finished sweep of user-level sampling, a grid of powers of two per
    epsilon.

    L(G) is estimated from the training records of at most 128 non-members. No model was trained on these records.

    Raises:
        InputError: the sweep has no such grid, or has no ledger.
    """
    grid = grid_of(folder, "loss", COHORT, GROUP, EPSILON)
    folders = [
        folder / "cells" / str(its.block) / its.variant for its in read_sweep(folder).cells if its.state == "done"
    ]
    norm = _norms(folders[0], reporter)
    noise: dict[float, dict[int, float]] = {}
    for its in folders:
        record = read_record(its / "record.json")
        defense = record.config["defense"]
        if record.training is not None and defense.get("target_epsilon") is not None:
            of_cohort = noise.setdefault(float(defense["target_epsilon"]), {})
            of_cohort[defense["cohort"]] = record.training.noise_multiplier
    found = []
    for panel in grid.panels:
        losses = {(int(g), int(m)): loss for (m, g), loss in panel.measured.items()}
        epsilon = float(panel.value or 0)
        found += shortfalls(losses, noise[epsilon], norm, epsilon)
    if not found:
        raise InputError(
            f"'{folder}' has no budget with two splits into cohort and group size: give the folder of another sweep"
        )
    return tuple(found)


def _norms(folder: Path, reporter: Reporter) -> Callable[[int], float]:
    if not (folder / "ledger" / "ledger.json").is_file():
        raise InputError(f"'{folder}' has no ledger, so members are unknown: restore ledger/ from a backup")
    config = read_run_config(folder)
    corpus = read_corpus(config, reporter)
    base = base_model(config, corpus, reporter)[1]
    data = prepare_data(config, folder, reporter, corpus, base)
    users = data.real(data.ledger.users(Role.HELD_OUT))
    tokens = {}
    for user in keyed_order(seed_key(config.seed), "norms", users)[:SAMPLED_USERS]:
        documents = documents_of(data.store, data.ledger.parts[user][Part.TRAIN])
        if documents:
            tokens[user] = encode(base.tokenizer, documents, config.finetune.sequence_length)
    known: dict[int, float] = {}
    return lambda group: known.setdefault(group, median_user_norm(base, tokens, group))


def table(found: tuple[Shortfall, ...]) -> str:
    """Return the shortfalls as plain text, with their means over budgets and epsilons."""
    lines = [f"{'epsilon':>8}{'budget':>8}  {'rule':<22}{'G x M':<12}loss above the best split"]
    for its in found:
        split = "-" if its.chosen is None else f"{its.chosen[0]} x {its.chosen[1]}"
        lines.append(f"{its.epsilon:>8g}{its.budget:>8}  {its.rule:<22}{split:<12}{its.loss:+.4f}")
    lines.append("")
    for rule in (ORACLE, DOUBLE, RANDOM, MAX_COHORT, MAX_GROUP):
        losses = [its.loss for its in found if its.rule == rule]
        if losses:
            lines.append(f"mean of {rule}: {statistics.mean(losses):.4f} over {len(losses)} budgets")
    return "\n".join(lines)


def as_dict(found: tuple[Shortfall, ...]) -> dict[str, Any]:
    """Return every shortfall, for JSON."""
    return {"shortfalls": [asdict(its) for its in found]}
