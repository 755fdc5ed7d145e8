"""The choices that an audit fixes before it sees a score, so that no result has to be corrected for them.

It includes how users came to be held in or out, and who vouches for it: every statement about users rests on this.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heldin.attacks.access import Access, deciding_level, falls_short
from heldin.attacks.config import AttackConfig
from heldin.audit.decision import AuditConfig, DecisionConfig
from heldin.audit.randomisation import Law, least_redraws
from heldin.bounds.design import Assignment
from heldin.bounds.verdict import Claim
from heldin.words.people import USERS, Wording
from heldin.words.statement import Statement


@dataclass(frozen=True)
class Sides:
    """The assignment of membership.

    Attributes:
        assignment: independent fair coins, any other known way (an exact half, a split by hand), or unknown.
        witnessed: True if heldin drew the assignment, False if somebody asserts it.
        unmet: what else a certified statement needs and does not have, such as a word on what the model was trained on.
        unshown: why it is not shown that canary rows had an effect on the model. A claim that canary users do not
            contradict is then not contradicted with indicative evidence only.
    """

    assignment: Assignment
    witnessed: bool
    unmet: tuple[Statement, ...] = ()
    unshown: tuple[Statement, ...] = ()

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
    kind: str | None = None
    part: bool = False


@dataclass(frozen=True)
class Preregistration:
    """The choices that are fixed beforehand.

    Attributes:
        attack: which attack and aggregation lead, and the others.
        audit: false-positive rates, resamples, delta.
        decision: the thresholds of the answer.
        sides: how membership is decided.
        claims: the claims to test on those whom the answer is about.
        seed: seed of bootstrap, redraws and halves; public.
        judged: number of panels that are judged, times the number of looks (Bonferroni correction).
        wording: words for who is audited.
        panels: further panels.
        others: what attackers of other levels do, each of whom is answered next to the one who decides.
        falls_short: whether those who get the model see more of it than any attacker of the audit.
    """

    attack: AttackConfig
    audit: AuditConfig
    decision: DecisionConfig
    sides: Sides
    claims: Sequence[Claim] = ()
    seed: int = 0
    judged: int = 1
    wording: Wording = USERS
    panels: Sequence[Panel] = ()
    others: Sequence[AttackConfig] = ()
    falls_short: bool = False

    def by_level(self, released: str | None) -> "Preregistration":
        """Return the choices with one attacker who decides, and the others next to it; all have equal shares of alpha.

        Args:
            released: what those who get the model will have; None: not stated.
        """
        levels, decision = self.attack.access, self.decision
        deciding = deciding_level(levels, released)
        others = [self.attack.at(level) for level in Access if level in levels and level is not deciding]
        shares = {name: getattr(decision, name) / len(levels) for name in ("auroc_level", "tpr_level")}
        # As many redraws as the smaller levels need.
        redraws = max(decision.redraws, *(least_redraws(share) for share in shares.values()))
        return replace(
            self,
            attack=self.attack.at(deciding),
            decision=decision.model_copy(update={**shares, "redraws": redraws}),
            judged=self.judged * len(levels),
            others=others,
            falls_short=falls_short(levels, released),
        )

    @property
    def delta(self) -> float:
        """delta of the bounds: the first claim's, about whomever it is, or the config's if nothing is claimed."""
        claims = [*self.claims, *(claim for panel in self.panels for claim in panel.claims if not panel.part)]
        return claims[0].delta if claims else self.audit.delta
