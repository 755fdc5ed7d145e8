"""Shadow models on real corpora: users' own variances compared with one pooled variance, and with no shadow models.

    python benchmarks/shadow_evidence.py FOLDER [--corpora plays built-in enron] [--groups 0 1 2]
    python benchmarks/shadow_evidence.py FOLDER --table

Everything below was fixed and committed before any result.

**Trainings.** A group is ten trainings of a corpus by the recipe of `configs/evidence`, with the same people and the
same base. They form five pairs: by fair coins, the second training of a pair includes the people whom the first
excludes. Each training is audited in turn. The shadow models of its audit are from other pairs, so every user is in
half of them, and none of them depends on the audited coins. K = 2 uses one pair, K = 4 two pairs, and K = 8 four pairs,
in the order after the audited pair. A group therefore gives ten audits. They share models, but groups share none.
Scores are the primary attack's: the likelihood ratio of fresh texts, mean over texts.

**The rule.** The measure is TPR at 5 % FPR: the mean over all audits of a group, then over groups, then over corpora:

- with 8 shadow models, users' own variances (`attacks/shadow.py`) reach at least the TPR of one pooled variance as in
LiRA
  (the earlier method, `tests/oracles/shadow.py`, here over all users at once);
- with 2 shadow models, they reach a higher TPR than the primary attack alone.

Both are also printed for each corpus with every group's difference, because three groups of a corpus show little.
"""

import argparse
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attack_evidence import AGGREGATION, CONFIGS, CORPORA, DEFAULT, LOW_FPR
from numpy.typing import NDArray

from heldin.attacks.kinds import get_attack
from heldin.attacks.protocol import user_scores
from heldin.attacks.scoring import score_attacks
from heldin.attacks.shadow import shadow_likelihood_ratio
from heldin.base.coins import fair_coin, new_key
from heldin.base.files import cache_directory, whole_file
from heldin.base.progress import LineReporter, Reporter
from heldin.bounds.roc import auroc
from heldin.corpus.split import Role
from heldin.finetune.ranks import joined
from heldin.models.opening import load_language_model
from heldin.models.score_cache import ScoreCache
from heldin.stages.run_config import RunConfig, load_config
from heldin.stages.run_folder import take_folder
from heldin.stages.sides.corpus import read_corpus
from heldin.stages.sides.data import RunData, prepare_data, texts_under_attack
from heldin.stages.train.models import base_model
from heldin.stages.train.plan import settle_plan
from heldin.stages.train.training import finetune

Array = NDArray[np.float64]

PAIRS, GROUPS, MODELS = 5, 3, (2, 4, 8)
OWN, POOLED, ALONE = "own variances", "pooled variance", "no shadow models"


def pooled_variance_ratio(target: Array, shadows: Array, included: NDArray[np.bool_]) -> Array:
    """Return the log-ratio of two normal densities around each user's means, with one variance for all (LiRA), shape
    (n,)."""
    inside, outside = (
        np.where(its, shadows, 0.0).sum(axis=0) / its.sum(axis=0) for its in (included, ~included)
    )  # (n,) each
    left = shadows - np.where(included, inside, outside)
    variance = float((left**2).sum()) / (shadows.size - 2 * shadows.shape[1])
    return np.asarray(((target - outside) ** 2 - (target - inside) ** 2) / (2 * variance))


def measure(corpus_name: str, group: int, folder: Path) -> None:
    """Train and score the parts of a group that are not stored yet. Scores and membership of each training are
    stored."""
    config = load_config(CONFIGS / f"{corpus_name}.yaml")
    quiet = LineReporter(lambda line: print(line, flush=True))
    corpus = read_corpus(config, quiet)
    for pair in range(PAIRS):
        # One file a pair, so that its second half has the coins of the first turned.
        path = folder / "scores" / f"{corpus_name}-{group}-{pair}.npz"
        if path.is_file():
            continue
        out = folder / "runs" / f"{corpus_name}-{group}-{pair}"
        shutil.rmtree(out, ignore_errors=True)
        take_folder(config, out)
        with joined():
            base_name, base = base_model(config, corpus, quiet)
            data = prepare_data(config, out, quiet, corpus, base)
        key, users = new_key(), data.ledger.scored_users()
        member = np.array([fair_coin(key, "membership", user) for user in users])
        scores = [
            _scores(config, data, side, base_name, out / str(n), quiet) for n, side in enumerate((member, ~member))
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as temporary, temporary.open("wb") as file:
            np.savez(file, member=member, first=scores[0], second=scores[1])
        shutil.rmtree(out)
        print(f"done: {path.name}", flush=True)


def _scores(
    config: RunConfig, data: RunData, member: NDArray[np.bool_], base_name: str, out: Path, reporter: Reporter
) -> Array:
    """Return the scores of all users under a model that is trained on the members."""
    users = data.ledger.scored_users()
    roles = {user: Role.HELD_IN if its else Role.HELD_OUT for user, its in zip(users, member, strict=True)}
    ledger = replace(data.ledger, key=new_key(), roles={**data.ledger.roles, **roles})
    mine = replace(data, ledger=ledger, training_rows=ledger.training_rows())
    out.mkdir(parents=True)
    with joined():
        base = load_language_model(base_name)
        result = finetune(config, mine, base, settle_plan(config, mine, out), out, reporter)
    target, reference = load_language_model(str(result.folder)), load_language_model(base_name)
    cache = ScoreCache(cache_directory() / "scores")
    try:
        texts = texts_under_attack(config, mine)
        found = score_attacks([get_attack(DEFAULT)], texts, target, reference, cache)
    finally:
        cache.close()
    return user_scores(found, DEFAULT, AGGREGATION).of(users)


Trainings = Sequence[tuple[NDArray[np.bool_], Array]]  # who is in, and everybody's score; first and second of each pair


def audits(trainings: Trainings) -> list[dict[str, dict[str, float]]]:
    """Return how much each training of a group leaks by each method, audited with models of the pairs after its own."""
    pairs = len(trainings) // 2
    found = []
    for number, (member, target) in enumerate(trainings):
        after = [(number // 2 + i) % pairs for i in range(1, pairs)]
        others = [trainings[2 * pair + half] for pair in after for half in (0, 1)]
        ways = {ALONE: target}
        for models in MODELS:
            if models > len(others):
                continue
            included, shadows = (np.array([its[part] for its in others[:models]]) for part in (0, 1))
            ways[f"{OWN}, {models}"] = shadow_likelihood_ratio(target, shadows, included)
            if models > 2:  # of one score on a side nothing is left over to pool
                ways[f"{POOLED}, {models}"] = pooled_variance_ratio(target, shadows, included)
        found.append({name: _found(values, member) for name, values in ways.items()})
    return found


def _found(scores: Array, member: NDArray[np.bool_]) -> dict[str, float]:
    inside, outside = scores[member], scores[~member]
    return {"auroc": auroc(inside, outside), "tpr": float((inside > np.quantile(outside, 1 - LOW_FPR)).mean())}


def group_means(folder: Path) -> dict[str, list[dict[str, dict[str, float]]]]:
    """Return, by corpus and complete group, the mean over audits of AUROC and TPR for each method."""
    found: dict[str, list[dict[str, dict[str, float]]]] = {}
    for corpus in CORPORA:
        for group in range(GROUPS):
            paths = [folder / "scores" / f"{corpus}-{group}-{pair}.npz" for pair in range(PAIRS)]
            if not all(path.is_file() for path in paths):
                continue
            trainings = []
            for path in paths:
                with np.load(path) as kept:
                    trainings += [(kept["member"], kept["first"]), (~kept["member"], kept["second"])]
            rows = audits(trainings)
            found.setdefault(corpus, []).append(
                {
                    way: {key: float(np.mean([row[way][key] for row in rows])) for key in ("auroc", "tpr")}
                    for way in rows[0]
                }
            )
    return found


def difference(found: Mapping[str, Sequence[Mapping[str, Any]]], way: str, than: str) -> dict[str, list[float]]:
    """Return the TPR of one method minus another's, by corpus and group."""
    return {corpus: [its[way]["tpr"] - its[than]["tpr"] for its in groups] for corpus, groups in found.items()}


def table(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return a Markdown table by corpus and method, the differences in the rule, and the result of the rule."""
    lines = ["| corpus | groups of ten | way, shadow models | AUROC | TPR at 5 % FPR |", "|---|---|---|---|---|"]
    for corpus, groups in found.items():
        for way in groups[0]:
            area, rate = (np.mean([its[way][key] for its in groups]) for key in ("auroc", "tpr"))
            lines.append(f"| {corpus} | {len(groups)} | {way} | {area:.3f} | {rate:.3f} |")
    lines.append("")
    for way, than, met in (
        (f"{OWN}, 8", f"{POOLED}, 8", lambda gain: gain >= 0),
        (f"{OWN}, 2", ALONE, lambda gain: gain > 0),
        (f"{OWN}, 4", f"{POOLED}, 4", None),
    ):
        by_corpus = difference(found, way, than)
        for corpus, groups in by_corpus.items():
            lines.append(f"{corpus}: TPR of {way} less {than}: {', '.join(f'{its:+.4f}' for its in groups)}")
        mean = float(np.mean([np.mean(groups) for groups in by_corpus.values()]))
        says = "" if met is None else ": met" if met(mean) else ": not met"
        lines.append(f"all: TPR of {way} less {than}: {mean:+.4f}{says}")
    return "\n".join(lines)


def main() -> None:
    """Measure the requested groups that are not stored yet. Then print the table of all stored groups."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--corpora", nargs="+", default=CORPORA, choices=CORPORA)
    parser.add_argument("--groups", nargs="+", type=int, default=range(GROUPS))
    parser.add_argument("--table", action="store_true", help="measure nothing")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for group in () if chosen.table else chosen.groups:
        for corpus in chosen.corpora:
            measure(corpus, group, chosen.folder)
    print(table(group_means(chosen.folder)))


if __name__ == "__main__":
    main()
