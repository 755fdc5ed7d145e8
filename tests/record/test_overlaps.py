"""Texts and users that stand among training records, and when that voids a comparison."""

import pytest

from heldin.record.overlaps import seen_in_training, training_flaws
from heldin.words.answer import ComparisonFlaw

MEMBER = {**{f"in {i}": True for i in range(20)}, **{f"out {i}": False for i in range(20)}}
TEXTS = {user: [[f"{user} wrote {j}"] for j in range(5)] for user in MEMBER}


def _flaws(training):
    sides = {side: {u: t for u, t in TEXTS.items() if MEMBER[u] is side} for side in (True, False)}
    seen = {side: seen_in_training(its, training) for side, its in sides.items()}
    return training_flaws(MEMBER, seen, 100)


OWN = [(user, f"{user} trained {j}") for user in MEMBER if MEMBER[user] for j in range(3)]


@pytest.mark.parametrize(
    ("beside", "flaws"),
    [
        ([], []),
        ([("somebody", "out 3 wrote 1")] * 9, []),  # one text, nine times
        ([("somebody", f"out {i} wrote 1") for i in range(5)], []),
        (
            [("somebody", f"out {i} wrote 1") for i in range(6)],
            [ComparisonFlaw.HELD_OUT_TEXTS_TRAINED_ON(count=6, texts=100)],
        ),
        (
            [("out 1", "else"), ("out 2", "else")],
            [ComparisonFlaw.HELD_OUT_USERS_TRAINED_ON(count=2, users=20)],
        ),
    ],
)
def test_held_out_users_who_were_trained_on_under_any_name_void_the_comparison(beside, flaws):
    assert _flaws(OWN + beside) == flaws


def test_held_in_users_who_were_not_void_it_too():
    assert _flaws(OWN[:24]) == [ComparisonFlaw.HELD_IN_USERS_ABSENT(count=12, users=20)]
