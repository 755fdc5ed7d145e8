"""Which records of a user are taken: by name, length or loss, never by what others have."""

import pytest

from heldin.base.coins import seed_key
from heldin.defenses.data_side.selection import select_records
from tests.refusals import refused

IDS = ["a", "b", "c", "d"]
COMMON = {
    "ids": IDS,
    "lengths": [5, 9, 2, 9],
    "key": seed_key(0),
    "purpose": "records 3",
    "losses": [1.0, 3.0, 2.0, 0.5],
}


@pytest.mark.parametrize(
    ("rule", "chosen"),
    [
        ("longest", [1, 3]),
        ("shortest", [0, 2]),
        ("highest_perplexity", [1, 2]),
        ("lowest_perplexity", [0, 3]),
        ("all", [0, 1, 2, 3]),
    ],
)
def test_rules(rule, chosen):
    assert select_records(rule, 2, **COMMON) == chosen


def test_random_choices_are_even_change_with_the_purpose_and_follow_the_ids():
    counts = dict.fromkeys(IDS, 0)
    for step in range(3000):
        for i in select_records("random", 2, **{**COMMON, "purpose": f"records {step}"}):
            counts[IDS[i]] += 1
    assert all(1350 < n < 1650 for n in counts.values())  # 1500 +- 5.5 standard deviations
    chosen = {IDS[i] for i in select_records("random", 2, **COMMON)}
    turned = IDS[::-1]
    assert {turned[i] for i in select_records("random", 2, **{**COMMON, "ids": turned})} == chosen
    assert select_records("random", 9, **COMMON) == [0, 1, 2, 3]


def test_what_cannot_be_chosen():
    with refused(by=select_records, naming=("0", "1")):
        select_records("random", 0, **COMMON)
    with refused(by=select_records, naming="'lowest_perplexity'"):
        select_records("lowest_perplexity", 1, **{**COMMON, "losses": None})
    with refused(by=select_records, naming="'random_chunk'"):
        select_records("random_chunk", 1, **COMMON)
