"""Sentences about the published ladder of users: how many made-up users a private training needed."""

from heldin.words.statement import Code


class Ladder(Code):
    """What the ladder says of one training and epsilon."""

    OPENING = (
        "On made-up users (docs/users.md), private training kept of the gain of plain training, by the lower 95 % limit"
        " (your texts and model differ):"
    )
    KEPT = "{percent:.0f} %: {training} at epsilon {epsilon:g} from {users:,} users on"
    NOT_KEPT = "{percent:.0f} %: {training} at epsilon {epsilon:g} at no rung up to {largest:,} users"
