"""The design of an audit: how membership was decided, and the choices that were fixed before looking."""

from dataclasses import dataclass
from enum import StrEnum

from scipy import stats

from heldin.attacks.protocol import Uses
from heldin.base.errors import InputError
from heldin.bounds.scores import check_alpha
from heldin.words.evidence import REAL_USERS, Caution, Flaw
from heldin.words.statement import Statement

BLIND_UNDER_COINS = 1e-4  # p-value of the blind baseline below which there is a warning, if coins drew membership
BLIND_OTHERWISE = 1e-2  # and below which a result is not certified, if they did not
SELDOM_EVEN = 0.05  # there is a warning if fair coins split users this evenly with a probability below this
_IMPLAUSIBLE = 1e-6  # p-value of the numbers of both sides below which coins are not believed


class Assignment(StrEnum):
    """How membership was decided."""

    COIN = "coin"  # independent fair coins, drawn after the pool was fixed
    FIXED = "fixed"  # by hand, by time, an exact half: anything else that is known
    UNKNOWN = "unknown"


def assignment_named(text: str) -> Assignment:
    """Return the assignment with this name. Raises InputError if there is none."""
    if text not in tuple(Assignment):
        raise InputError(f"assignment '{text}' is unknown: choose {', '.join(Assignment)}")
    return Assignment(text)


@dataclass(frozen=True)
class Design:
    """How the evidence was obtained, and the choices that were fixed before looking.

    Attributes:
        assignment: how membership was decided.
        independent_trainings: whether each score comes from a separate training. The trainings differ only in the
            user's presence.
        coins_witnessed: whether heldin drew the coins. False for somebody else's checkpoint, because its coins are only
            asserted.
        coins_stated: whether the evidence counts as certified although only the person who runs the audit vouches for
            the coins.
        reference_on_one_side: whether the reference model was trained on one group of the audited users, or on a split
            that depends on the group.
        blind_p_value: p-value of a baseline that never sees the audited model; None if no baseline was run.
        guesses: r of the one-run test, registered before looking; None: several numbers are tried (one_run.paid_tries).
        thresholds: thresholds for independent trainings, fixed before looking; empty: the test uses simultaneous bands.
        attacks: number of attacks tried, if these scores are the best of several.
        alpha: total error probability.
        gaussian: whether the mechanism's trade-off curve is known to be Gaussian (no sampling).
        subjects: the people who have the scores.
        unmet: missing conditions of every certified result.
        unshown: missing conditions of a certified result that does not contradict a claim. A contradiction needs none.
        uses: the data that the score learns from.
    """

    assignment: Assignment
    independent_trainings: bool = False
    coins_witnessed: bool = True
    coins_stated: bool = False
    reference_on_one_side: bool = False
    blind_p_value: float | None = None
    guesses: int | None = None
    thresholds: tuple[float, ...] = ()
    attacks: int = 1
    alpha: float = 0.05
    gaussian: bool = False
    subjects: Statement = REAL_USERS
    unmet: tuple[Statement, ...] = ()
    unshown: tuple[Statement, ...] = ()
    uses: Uses = Uses.MODEL

    def __post_init__(self) -> None:
        check_alpha(self.alpha, self.attacks)
        if self.blind_p_value is not None and not 0.0 <= self.blind_p_value <= 1.0:
            raise InputError(f"the blind baseline's p-value {self.blind_p_value} is outside [0, 1]: give a p-value")

    def flaws(self, members: int, users: int) -> tuple[Statement, ...]:
        """Return why a result is not certified, the gravest reason first; empty if it is certified.

        See docs/theory.md#conditions-of-one-run.
        """
        coin = self.assignment is Assignment.COIN
        blind = self.blind_p_value
        checks = [
            (
                blind is not None and not coin and blind < BLIND_OTHERWISE,
                Flaw.BLIND_DIFFERS(p=float(f"{blind or 0.0:.1g}")),
            ),
            (
                # Independent trainings may have the user or not by plan: it is no coin that their limits rest on.
                self.assignment is Assignment.FIXED and not self.independent_trainings,
                Flaw.SPLIT_FIXED(),
            ),
            (self.assignment is Assignment.UNKNOWN, Flaw.ASSIGNMENT_UNKNOWN()),
            (coin and not self.coins_witnessed, Flaw.COINS_ASSERTED()),
            (
                coin and float(stats.binomtest(members, users).pvalue) < _IMPLAUSIBLE,
                Flaw.COINS_IMPLAUSIBLE(members=members, users=users),
            ),
            (self.reference_on_one_side, Flaw.REFERENCE_ON_ONE_SIDE()),
        ]
        return (*(flaw for holds, flaw in checks if holds), *self.unmet)

    def cautions(self, members: int, users: int) -> tuple[Statement, ...]:
        """Return warnings about patterns that fair coins seldom produce and mistakes often produce."""
        if self.assignment is not Assignment.COIN:
            return ()
        cautions = []
        if self.blind_p_value is not None and self.blind_p_value < BLIND_UNDER_COINS:
            cautions.append(Caution.BLIND_UNDER_COINS(p=float(f"{self.blind_p_value:.1g}"), level=BLIND_UNDER_COINS))
        # heldin's own coins may come out even; where coins are only stated, an even split may be an exact half.
        even = evenness(members, users)
        if (self.coins_stated or not self.coins_witnessed) and even is not None and even < SELDOM_EVEN:
            split = Caution.EVEN_SPLIT if users % 2 == 0 else Caution.ODD_SPLIT
            cautions.append(split(members=members, others=users - members, percent=100.0 * even))
        return tuple(cautions)


def evenness(members: int, users: int) -> float | None:
    """Return the probability that fair coins split users as evenly as possible; None if this split is less even."""
    if abs(2 * members - users) > users % 2:
        return None
    return float((1 + users % 2) * stats.binom.pmf(users // 2, users, 0.5))
