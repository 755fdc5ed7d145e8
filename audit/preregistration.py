"""The choices that an audit fixes before it sees a score, so that no result has to be corrected for them.

It includes how users came to be held in or out, and who vouches for it: every statement about users rests on this.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from heldin.attacks.config import AttackConfig
from heldin.audit.decision import AuditConfig, DecisionConfig
from heldin.audit.randomisation import Law
from heldin.bounds.design import Assignment
from heldin.bounds.verdict import Claim
from heldin.corpus.split import SplitRule
from heldin.words import Statement
from heldin.words.people import USERS, Wording


@dataclass(frozen=True)
class Sides:
    """The assignment of membership.

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
        """Return the law of redrawing: coins as coins, all else as permutations that keep the size of each group."""
        # An unknown way is redrawn as permutations too; its p-values are indicative, since nobody witnessed it.
        return Law.COINS if self.assignment is Assignment.COIN else Law.PERMUTATION


# Of canary users and of trainings, each of which has its own coin, drawn by heldin.
COINS = Sides(Assignment.COIN, witnessed=True)


def sides_of_run(assignment: SplitRule) -> Sides:
    """The sides of a run, whose ledger heldin drew: coins, or an exact half."""
    return Sides(Assignment.COIN if assignment is SplitRule.COIN else Assignment.FIXED, witnessed=True)


@dataclass(frozen=True)
class Preregistration:
    """The choices that are fixed beforehand.

    Attributes:
        attack: which attack and aggregation lead, and the others.
        audit: false-positive rates, resamples, delta.
        decision: the thresholds of the answer.
        sides: how membership is decided.
        seed: seed of bootstrap, redraws and halves; public.
        judged: number of groups of people on whom the claims are tested side by side (Bonferroni correction).
        canary_claims: the claims to test on canary users of a kind, where they are not those on real users.
        wording: words for who is audited.
        example_claims: claims about single training examples, which are tested on users with exactly one.
    """

    attack: AttackConfig
    audit: AuditConfig
    decision: DecisionConfig
    sides: Sides
    claims: Sequence[Claim] = ()
    seed: int = 0
    judged: int = 1
    canary_claims: Mapping[str, Sequence[Claim]] = field(default_factory=dict)
    wording: Wording = USERS
    example_claims: Sequence[Claim] = ()

    @property
    def delta(self) -> float:
        """delta of the bounds: that of the first claim, or the config's if nothing is claimed."""
        claimed = [*self.claims, *(claim for claims in self.canary_claims.values() for claim in claims)]
        return claimed[0].delta if claimed else self.audit.delta
