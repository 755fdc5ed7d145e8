"""The choices that an audit fixes before it sees a score, so that no result needs a correction for them.

The choices include how users became members or non-members, and who vouches for the assignment. Every statement about
users depends on the assignment.
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
    """How users became members or non-members.

    Attributes:
        assignment: how membership was decided: by independent fair coins, in another known way (an exact half, a split
            by hand), or unknown.
        witnessed: True if heldin drew the assignment, False if somebody asserts it.
        unmet: an unmet further condition of a certified statement, such as a missing declaration of the training data.
        unshown: the reason why canary rows are not shown to affect the model. A claim that canary users do not
            contradict is then "not contradicted" with indicative evidence only.
    """

    assignment: Assignment
    witnessed: bool
    unmet: tuple[Statement, ...] = ()
    unshown: tuple[Statement, ...] = ()

    @property
    def coins(self) -> bool:
        """Whether heldin drew independent fair coins, which certified bounds require."""
        return self.witnessed and self.assignment is Assignment.COIN

    @property
    def law(self) -> Law:
        """Return the law of a redraw: new coins for coins, else permutations that keep the sizes of the groups."""
        # An unknown way is redrawn as permutations too; its p-values are indicative, since nobody witnessed it.
        return Law.COINS if self.assignment is Assignment.COIN else Law.PERMUTATION


# Of canary users and of trainings, each of which has its own coin, drawn by heldin.
COINS = Sides(Assignment.COIN, witnessed=True)


@dataclass(frozen=True)
class Panel:
    """People on whom claims are tested together, in addition to the people whom the answer is about.

    Each panel has its share of the error probability (``Preregistration.judged``).

    Attributes:
        subjects: the words for these people in the record.
        users: names of these people.
        claims: the claims to test on these people.
        kind: kind of the canary users, if heldin compares scores within groups of equal length and number of documents;
            None: heldin compares scores as they are.
        part: whether these people are part of another panel's subjects; their bounds are then not repeated.
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
        attack: the primary attack and aggregation, and the other attacks and aggregations.
        audit: settings of false-positive rates, resamples and delta.
        decision: thresholds of the answer.
        sides: how users became members or non-members.
        claims: the claims to test on the people whom the answer is about.
        seed: public seed of bootstrap, redraws and halves.
        judged: number of judged panels times number of looks, for the Bonferroni correction.
        wording: words for the audited people.
        panels: further panels.
        others: attackers of other levels; each gets a separate answer.
        falls_short: whether recipients of the model see more of the model than every attacker of the audit does.
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
        """Return the choices with one deciding attacker and a list of the others. Attackers have equal shares of alpha.

        Args:
            released: access that recipients of the model will get; None if it is not stated.
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
        """Return delta of the bounds: from the first claim about any people, else from the config."""
        claims = [*self.claims, *(claim for panel in self.panels for claim in panel.claims if not panel.part)]
        return claims[0].delta if claims else self.audit.delta
