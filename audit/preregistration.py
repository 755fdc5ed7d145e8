"""What an audit fixes before it sees a score, so that nothing it says has to be corrected for the choice."""

from collections.abc import Sequence
from dataclasses import dataclass

from heldin.attacks.config import AttackConfig
from heldin.audit.config import AuditConfig
from heldin.audit.decision import DecisionConfig
from heldin.bounds.verdict import Claim


@dataclass(frozen=True)
class Preregistration:
    """What is fixed beforehand.

    Attributes:
        attack: which attack and aggregation lead, and which stand beside them.
        audit: false-positive rates, resamples, delta.
        decision: by what the answer is decided.
        claims: to test.
        seed: of bootstrap, redraws and halving; public.
        judged: groups of people on whom the claims are tested side by side; each pays for all (Bonferroni).
    """

    attack: AttackConfig
    audit: AuditConfig
    decision: DecisionConfig
    claims: Sequence[Claim] = ()
    seed: int = 0
    judged: int = 1

    @property
    def delta(self) -> float:
        """Of the bounds: the first claim's, or the config's where nothing is claimed."""
        return self.claims[0].delta if self.claims else self.audit.delta
