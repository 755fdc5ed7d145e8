"""The number of users that an audit needs for "no leak found", estimated for planning. It is not a bound."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from heldin.audit.decision import DecisionConfig, users_needed
from heldin.audit.limits import Z_ONE_SIDED
from heldin.audit.randomisation import Law, randomisation_test
from heldin.base.errors import InputError
from heldin.base.wording import at_most_counted, counted

SCORES, CORRELATION = 15, 0.7  # about as many as a run judges by default, and as correlated as its scores mostly are
MOST_SCORES = 200
_USERS, _REDRAWS = 1000, 2000  # of the simulation of margins


@dataclass(frozen=True)
class Exclusion:
    """The number of users that "no leak found" needs if every score of the family is at chance.

    Attributes:
        scores: number of scores judged together.
        correlation: correlation of any two scores.
        auroc, tpr, fpr: the thresholds to rule out.
        users_needed: number of users, half of them members, with which an audit rules out both thresholds in four of
            five cases.
        users_auroc: AUROC that an audit of the given number of users rules out in 85 of 100 cases.
    """

    scores: int
    correlation: float
    auroc: float
    tpr: float
    fpr: float
    users_needed: int
    users_auroc: float

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dict."""
        return dataclasses.asdict(self)


def exclusion(users: int, by: DecisionConfig, *, scores: int = SCORES, correlation: float = CORRELATION) -> Exclusion:
    """Return the number of users that "no leak found" needs, from the formulas of ``audit.decision.users_needed``.

    Args:
        users: number of users, for ``users_auroc``.
        by: the thresholds to rule out.
        scores: number of scores judged together.
        correlation: correlation of any two scores, in [0, 1].

    Raises:
        InputError: there are fewer than two users or one score, or the correlation is outside [0, 1].
    """
    if users < 2:
        raise InputError(f"{counted(users, 'user')} cannot form two groups: give at least 2 users")
    auroc_margin, tpr_margin = margins(by.fpr, scores, correlation)
    return Exclusion(
        scores=scores,
        correlation=correlation,
        auroc=by.auroc,
        tpr=by.tpr,
        fpr=by.fpr,
        users_needed=users_needed(by, auroc_margin, tpr_margin),
        # Half of n users held in: an AUROC at chance has deviation 1 / sqrt(3 n) (docs/theory.md#randomisation-test).
        users_auroc=min(1.0, 0.5 + (max(auroc_margin, 0.0) + Z_ONE_SIDED) / math.sqrt(3 * users)),
    )


def margins(fpr: float, scores: int, correlation: float, seed: int = 0) -> tuple[float, float]:
    """Return the best score's deviation by chance, in AUROC and in TPR at ``fpr``, as the audit's own test computes it.

    heldin simulates normal scores of 1,000 users, or of more users if 1,000 cannot show ``fpr``. The units are the
    units of ``audit.randomisation.FamilyTest``.

    Args:
        fpr: false-positive rate of the TPR.
        correlation: correlation of any two scores, in [0, 1].
        seed: seed of scores and redraws.

    Raises:
        InputError: there is no score or more than 200, or the correlation is outside [0, 1].
    """
    if not 1 <= scores <= MOST_SCORES:
        raise InputError(
            f"heldin cannot judge {scores} scores together: give a number of scores from 1 to {MOST_SCORES}"
        )
    if not 0.0 <= correlation <= 1.0:
        raise InputError(
            f"correlation {correlation:g} is outside [0, 1]: give the correlation between two scores, for example 0.7"
        )
    rng = np.random.default_rng(seed)
    # Margins are in units that shrink with 1 / sqrt(users), so that those of one size are used for any number.
    users = max(_USERS, math.ceil(4 / fpr))  # enough that the test can show the rate
    shared, own = rng.standard_normal(users), rng.standard_normal((scores, users))
    # One shared part gives any two scores this correlation: (scores, users).
    values = math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own
    # Any assignment does: the margins come from the redraws alone, not from the assignment that is passed.
    member = np.arange(users) % 2 == 0
    chance = randomisation_test(values, member, law=Law.COINS, fprs=[fpr], redraws=_REDRAWS, seed=seed)
    return chance.auroc_margin, chance.tpr_margins[0]


def lines(exclusion: Exclusion, users: int) -> list[str]:
    """Return the answer as plain text."""
    alike = f" (correlation {exclusion.correlation:g}), if all are" if exclusion.scores > 1 else ", if it is"
    return [
        f'"no leak found" by {counted(exclusion.scores, "score")}{alike} at chance',
        f"  users needed to rule out an AUROC of {exclusion.auroc:g} and a TPR of {exclusion.tpr:g}"
        f" at {100 * exclusion.fpr:g} % FPR in four of five audits: {at_most_counted(exclusion.users_needed)}",
        f"  AUROC that {users:,} users rule out in 85 of 100 audits: {exclusion.users_auroc:.2f}",
    ]
