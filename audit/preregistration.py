"""What an audit fixes before it sees a score, so that no result has to be corrected for the choice."""

from collections.abc import Sequence
from dataclasses import dataclass

from heldin.attacks.config import AttackConfig
from heldin.audit.config import AuditConfig
from heldin.audit.decision import DecisionConfig
from heldin.audit.sides import Sides
from heldin.bounds.verdict import Claim
from heldin.canaries.kinds import Kind
from heldin.words import Statement
from heldin.words.people import USERS, Wording


@dataclass(frozen=True)
class Panel:
    """Subjects on whom claims are tested together, besides those whom the answer is about.

    Each panel has its share of the error probability (``Preregistration.judged``).

    Attributes:
        subjects: who they are, for the record.
        users: their names.
        claims: the claims to test on them.
        kind: kind of all of them if they are canary users whose scores are compared within groups of equal length and
            number of documents; None: their scores are compared as they are.
        part: whether they are a part of the subjects of another panel, whose bounds are not repeated.
    """

    subjects: Statement
    users: Sequence[str]
    claims: Sequence[Claim]
    kind: Kind | None = None
    part: bool = False


@dataclass(frozen=True)
class Preregistration:
    """What is fixed beforehand.

    Attributes:
        attack: which attack and aggregation lead, and the others.
        audit: false-positive rates, resamples, delta.
        decision: the thresholds of the answer.
        sides: how membership is decided.
        claims: the claims to test on those whom the answer is about.
        seed: seed of bootstrap, redraws and halves; public.
        judged: number of panels that are judged, times the number of looks (Bonferroni correction).
        what: words for who is audited.
        panels: further panels.
    """

    attack: AttackConfig
    audit: AuditConfig
    decision: DecisionConfig
    sides: Sides
    claims: Sequence[Claim] = ()
    seed: int = 0
    judged: int = 1
    what: Wording = USERS
    panels: Sequence[Panel] = ()

    @property
    def delta(self) -> float:
        """delta of the bounds: the first claim's, about whomever it is, or the config's if nothing is claimed."""
        claims = [*self.claims, *(claim for panel in self.panels for claim in panel.claims if not panel.part)]
        return claims[0].delta if claims else self.audit.delta
