"""What an audit fixes before it sees a score, so that no result has to be corrected for the choice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from heldin.attacks.config import AttackConfig
from heldin.audit.config import AuditConfig
from heldin.audit.decision import DecisionConfig
from heldin.audit.sides import Sides
from heldin.bounds.verdict import Claim
from heldin.words.people import USERS, Wording


@dataclass(frozen=True)
class Preregistration:
    """What is fixed beforehand.

    Attributes:
        attack: which attack and aggregation lead, and the others.
        audit: false-positive rates, resamples, delta.
        decision: the thresholds of the answer.
        sides: how membership is decided.
        claims: the claims to test.
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
        """delta of the bounds: the first claim's, about whomever it is, or the config's if nothing is claimed."""
        claimed = [*self.claims, *(claim for claims in self.canary_claims.values() for claim in claims)]
        return claimed[0].delta if claimed else self.audit.delta
