"""Sentences about the published ladder of users, which shows how many made-up users a private training needed."""

from heldin.words.statement import Code


class Ladder(Code):
    """What the ladder shows for one training and one epsilon."""

    OPENING = (
        "How many made-up users private training needed to keep a share of the gain of\n"
        "plain training (docs/users.md; lower 95 % limit). Your texts and model differ."
    )
    KEPT = "{percent:.0f} %: {users:,} users with {training} ({optimizer}) at epsilon {epsilon:g}"
    NOT_KEPT = "{percent:.0f} %: no rung up to {largest:,} users with {training} at epsilon {epsilon:g}"
