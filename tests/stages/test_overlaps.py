"""Overlaps by a query equal those of the slow twin, for users and entities, where many texts are repeated."""

import json
import random
from dataclasses import replace

import pytest

from heldin.stages.sides.data import prepare_data
from heldin.stages.sides.split_facts import overlaps_of
from tests.oracles.overlaps import naive_overlaps
from tests.stages.test_audit_pool import PEOPLE, SILENT, config_of


@pytest.fixture
def corpus_file(tmp_path):
    """Thirty writers of twelve mails out of a few texts, some of which two writers have, or one writer twice."""
    dice, lines = random.Random(1), []
    for user in range(30):
        for mail in range(12):
            text = f"Mail {dice.randrange(4)}: we met {dice.choice([*PEOPLE[:8], 'nobody'])} \u2013 again."
            lines.append(json.dumps({"id": f"{user}-{mail}", "user": f"writer {user:02}", "text": text}) + "\n")
    (tmp_path / "mails.jsonl").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "names.txt").write_text("\n".join(PEOPLE), encoding="utf-8")
    return tmp_path / "mails.jsonl"


SPLITS = [
    {"audited": "users", "entities": None, "attacker_fraction": 0.4},
    {"audited": "users", "entities": None, "audit_pool": 12, "assignment": "exact_half"},
    {"audited": "entities", "entity_records": 1},
    {"audited": "both", "entity_records": 1},
]


@pytest.mark.coins("overlaps of entities")
def test_they_equal_the_slow_twins(corpus_file, tmp_path):
    """A text that names a held-out entity is in nobody's training: users show most of the counts."""
    every = []
    for number, split in enumerate(SPLITS):
        data = prepare_data(config_of(corpus_file, split=split), tmp_path / str(number), SILENT)
        # As if the base model had been pre-trained on these.
        data = replace(data, corpus=replace(data.corpus, public_rows=tuple(range(0, 90, 7))))
        every.append([its.count for _, its in overlaps_of(data)])
        assert every[-1] == naive_overlaps(data)
    # None is held out and trained on by name; all else occurs.
    assert [max(column) > 0 for column in zip(*every, strict=True)] == [True, True, True, False, True, True]
