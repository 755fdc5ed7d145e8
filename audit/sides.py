"""How users came to be held in or out, and who vouches for it: every statement about them rests on this."""

from dataclasses import dataclass

from heldin.audit.randomisation import Law
from heldin.bounds.design import Assignment
from heldin.corpus.split import SplitRule
from heldin.words import Statement


@dataclass(frozen=True)
class Sides:
    """How membership was assigned.

    Attributes:
        assignment: independent fair coins, any other known way (an exact half, a split by hand), or unknown.
        witnessed: True if heldin drew the assignment, False if somebody asserts it.
        unmet: what else a certified statement needs and does not have, such as a word on what the model was trained on.
    """

    assignment: Assignment
    witnessed: bool
    unmet: tuple[Statement, ...] = ()

    @property
    def coins(self) -> bool:
        """Independent fair coins that heldin drew: what certified bounds need."""
        return self.witnessed and self.assignment is Assignment.COIN

    @property
    def law(self) -> Law:
        """How it is redrawn: coins as coins, all else as permutations that keep the size of each side."""
        # An unknown way is redrawn as permutations too; its p-values are indicative, since nobody witnessed it.
        return Law.COINS if self.assignment is Assignment.COIN else Law.PERMUTATION


# Of canary users and of trainings, each of which has its own coin, drawn by heldin.
COINS = Sides(Assignment.COIN, witnessed=True)


def sides_of_run(assignment: SplitRule) -> Sides:
    """The sides of a run, whose ledger heldin drew: coins, or an exact half."""
    return Sides(Assignment.COIN if assignment is SplitRule.COIN else Assignment.FIXED, witnessed=True)
