"""Which attack should be primary: every statistic compared with the default, over sets of coins.

    python benchmarks/attack_evidence.py FOLDER [--corpora plays built-in enron] [--coins 0 1 2 3 4 5 6 7]
    python benchmarks/attack_evidence.py FOLDER --table

The rule was fixed before any result. A statistic becomes the default primary attack if two conditions hold on each of
the three corpora and for both kinds of documents. First, its AUROC minus the default's is above 0 in the mean over
eight sets of coins. Second, the lower one-sided 95 % limit of this mean (Student's t over the sets) is above -0.01.
Otherwise the present default stays.

Each set is a separate training with fresh coins (`configs/evidence`), on the same users and base model. Finished sets
are stored, one file per set, and not repeated. One set takes a minute or two on one core.
"""

import argparse
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from heldin.attacks.access import Access
from heldin.attacks.config import Documents
from heldin.attacks.kinds import names_at
from heldin.audit.scored_users import scored_users
from heldin.base.files import write_text
from heldin.base.progress import LineReporter
from heldin.bounds.roc import auroc
from heldin.finetune.ranks import joined
from heldin.models.opening import load_language_model
from heldin.stages.measures.scores import score_leading
from heldin.stages.run_config import load_config
from heldin.stages.run_folder import take_folder
from heldin.stages.sides.corpus import read_corpus
from heldin.stages.sides.data import prepare_data, texts_under_attack
from heldin.stages.train.models import base_model
from heldin.stages.train.plan import settle_plan
from heldin.stages.train.training import finetune

ATTACKS = names_at(Access.LOG_PROBABILITIES)
CONFIGS = Path(__file__).parents[1] / "configs" / "evidence"
CORPORA = ("plays", "built-in", "enron")
SETS = 8
DEFAULT, AGGREGATION = "likelihood-ratio", "mean"
DOCUMENTS: tuple[Documents, ...] = ("fresh", "training")
LOWEST_LIMIT = -0.01
LOW_FPR = 0.05


@dataclass(frozen=True)
class Gain:
    """A statistic's AUROC minus the default's over sets of coins: the mean, and its lower one-sided 95 % limit."""

    sets: int
    mean: float
    lower: float

    @property
    def passes(self) -> bool:
        """Return whether the gain meets the rule, with as many sets as the rule requires."""
        return self.sets >= SETS and self.mean > 0 and self.lower > LOWEST_LIMIT


def gain_of(differences: Sequence[float]) -> Gain:
    """Return the mean and the limit of paired differences. With fewer than two, the limit is minus infinity."""
    values = np.array(differences)
    if values.size < 2:
        return Gain(values.size, float(values.mean()) if values.size else math.nan, -math.inf)
    error = values.std(ddof=1) / math.sqrt(values.size)
    return Gain(values.size, float(values.mean()), float(values.mean() - stats.t.ppf(0.95, values.size - 1) * error))


def measure(corpus: str, coins: int, folder: Path) -> dict[str, object]:
    """Train once with fresh coins, and score every statistic on both kinds of documents."""
    config, out = load_config(CONFIGS / f"{corpus}.yaml"), folder / "runs" / f"{corpus}-{coins}"
    quiet = LineReporter(lambda line: print(line, flush=True))
    take_folder(config, out)
    with joined():
        store = read_corpus(config, quiet)
        base_name, base = base_model(config, store, quiet)
        data = prepare_data(config, out, quiet, store, base)
        result = finetune(config, data, base, settle_plan(config, data, out), out, quiet)
    # From disk: fine-tuning changed the base model in place.
    target, reference = load_language_model(str(result.folder)), load_language_model(base_name)
    attack = config.attack.model_copy(update={"names": tuple(ATTACKS)})
    found: dict[str, object] = {}
    for which in DOCUMENTS:
        texts = texts_under_attack(config, data, which)
        statistics = score_leading(attack, texts, target, reference, quiet)
        table = scored_users(statistics, data.ledger.membership())
        sides = {name: table.sides(name, AGGREGATION) for name in ATTACKS}
        found[which] = {
            name: {"auroc": auroc(*its), "tpr": float((its[0] > np.quantile(its[1], 1 - LOW_FPR)).mean())}
            for name, its in sides.items()
        }
    shutil.rmtree(out)
    member = data.ledger.membership()
    return {"corpus": corpus, "coins": coins, "held_in": sum(member.values()), "users": len(member), **found}


def gains(results: Sequence[Mapping[str, object]], corpus: str, which: str, name: str) -> Gain:
    """Return the statistic's gain over the default on one corpus and one kind of documents."""
    rows = [its[which] for its in results if its["corpus"] == corpus]
    return gain_of([row[name]["auroc"] - row[DEFAULT]["auroc"] for row in rows])  # type: ignore[index]


def table(results: Sequence[Mapping[str, object]]) -> str:
    """Return a Markdown table by corpus and statistic, with fresh and training documents, and the result of the
    rule."""
    of_each = "AUROC | less the default (lower limit) | TPR at 5 % FPR"
    lines = [f"| corpus | statistic | sets | {' | '.join(f'{which}: {of_each}' for which in DOCUMENTS)} |"]
    lines.append("|---" * (3 + 3 * len(DOCUMENTS)) + "|")
    for corpus in CORPORA:
        rows = [its for its in results if its["corpus"] == corpus]
        for name in ATTACKS if rows else ():
            cells = [cell for which in DOCUMENTS for cell in _cells(rows, corpus, which, name)]
            lines.append(f"| {corpus} | {name} | {len(rows)} | {' | '.join(cells)} |")
    new = [
        name
        for name in ATTACKS
        if all(gains(results, corpus, which, name).passes for corpus in CORPORA for which in DOCUMENTS)
    ]
    lines += ["", f"The rule is met by: {', '.join(new) or 'none'}; {SETS} sets of coins on every corpus are needed."]
    return "\n".join(lines)


def _cells(rows: Sequence[Mapping[str, object]], corpus: str, which: str, name: str) -> tuple[str, str, str]:
    area, rate = (np.mean([row[which][name][key] for row in rows]) for key in ("auroc", "tpr"))  # type: ignore[index]
    its = gains(rows, corpus, which, name)
    limit = f" ({its.lower:+.3f})" if math.isfinite(its.lower) else ""
    return f"{area:.3f}", "" if name == DEFAULT else f"{its.mean:+.3f}{limit}", f"{rate:.3f}"


def main() -> None:
    """Measure the requested sets that are not stored yet. Then print the table of all stored sets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--corpora", nargs="+", default=CORPORA, choices=CORPORA)
    parser.add_argument("--coins", nargs="+", type=int, default=range(SETS))
    parser.add_argument("--table", action="store_true", help="measure nothing")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    kept = chosen.folder / "results"
    kept.mkdir(parents=True, exist_ok=True)
    # One set of each corpus before the next set of any, so that a run that is cut off says something of all.
    for coins in () if chosen.table else chosen.coins:
        for corpus in chosen.corpora:
            path = kept / f"{corpus}-{coins}.json"
            if not path.is_file():
                # Written whole or not at all.
                write_text(path, json.dumps(measure(corpus, coins, chosen.folder)) + "\n")
                print(f"done: {path.name}", flush=True)
    print(table([json.loads(path.read_text(encoding="utf-8")) for path in sorted(kept.glob("*.json"))]))


if __name__ == "__main__":
    main()
