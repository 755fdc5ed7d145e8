"""The statistics stage of a large run, by parts and without a model: how its time grows with the number of users.

    PYTHONPATH=. .venv/bin/python benchmarks/statistics_stage.py [--users 1250 2500 5000]

Scores are made up. Texts are from the synthetic corpus: about nine scored texts and about 75 training texts per user,
as in a run whose attacker has a tenth of each user's records.
"""

import argparse
import itertools
import time

import numpy as np

from heldin.attacks.access import Access
from heldin.attacks.config import AttackConfig
from heldin.attacks.kinds import names_at
from heldin.attacks.protocol import REFERENCE_ALONE, TextStatistic
from heldin.audit.decision import AuditConfig, DecisionConfig
from heldin.audit.exposed_users import correlations, exposed_users, exposure_groups
from heldin.audit.panels import results_of
from heldin.audit.preregistration import COINS, Preregistration
from heldin.audit.scored_users import scored_users
from heldin.corpus.document import Document
from heldin.corpus.made_up.synthetic import SyntheticCorpus, generate
from heldin.defenses.data_side.contract import TrainingRecord

ATTACKS = names_at(Access.LOG_PROBABILITIES)
SCORED, TRAINED_ON = 9.4, 75
SENTENCES = 40  # users whose texts are written; the others' are theirs with a word of their own


def main() -> None:
    """Print the seconds of processor time for each number of users."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--users", type=int, nargs="+", default=[1250, 2500, 5000])
    texts = [record.text for record in generate(SyntheticCorpus(users=SENTENCES, mean_records=80, min_records=60))]
    for users in parser.parse_args().users:
        print(f"{users:,} users:", ", ".join(f"{name} {its:.1f} s" for name, its in _seconds(users, texts).items()))


def _seconds(users: int, texts: list[str]) -> dict[str, float]:
    rng = np.random.default_rng(0)
    member = {f"user {i}": bool(coin) for i, coin in enumerate(rng.random(users) < 0.5)}
    counts = 1 + rng.poisson(SCORED - 1, users)
    source = itertools.cycle(texts)
    scored = {user: [next(source) for _ in range(n)] for user, n in zip(member, counts, strict=True)}
    names = [*ATTACKS, REFERENCE_ALONE]
    statistics = [
        TextStatistic(user, t, name, float(value))
        for name in names
        for user, its in scored.items()
        for t, value in enumerate(rng.normal(0.1 * member[user], 1, len(its)))
    ]
    records = [
        TrainingRecord(0, user, f"{user} {i}", Document.of(f"{next(source)} word{i % 900}"))
        for user, its in member.items()
        if its
        for i in range(TRAINED_ON)
    ]
    found = {}
    started = time.process_time()
    table = scored_users(statistics, member)
    found["joining"] = time.process_time() - started
    started = time.process_time()
    results_of(table, scored, Preregistration(AttackConfig(), AuditConfig(), DecisionConfig(), COINS))
    found["attacks, test, bounds"] = time.process_time() - started
    started = time.process_time()
    people = exposed_users(table, records, attack="likelihood-ratio", aggregation="mean")
    exposure_groups(people), correlations(people)
    found["exposure"] = time.process_time() - started
    return {f"{int(sum(counts)):,} texts, {len(records):,} records": sum(found.values()), **found}


if __name__ == "__main__":
    main()
