"""The fifteen epsilons that Lai et al. print, our reproductions, and the epsilons that hold."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from heldin.base.tabular import Tabular
from heldin.defenses.accounting import guarantees as accounting
from heldin.defenses.accounting.events import PoissonGaussian, TwoLevelGaussian
from heldin.defenses.accounting.guarantees import missed_epsilon, moments_epsilon, sensitive_epsilon
from heldin.defenses.accounting.uedp_claims import ASSUMED, RULES

# z, q_e and q_u that section VI states for its analysis of epsilon (Figure 4). It trains GPT-2 and BERT with z = 2.5.
NOISE, ENTITY_RATE, USER_RATE, DELTA = 2.0, 0.5, 0.05, 1e-5


@dataclass(frozen=True)
class _Dataset:
    """A row of the paper's Table II, with the cohort for which its accountant gives the printed numbers.

    Attributes:
        name: name of the data set.
        users: number of users |U|.
        cohort: expected number of users per step, fitted to the printed epsilons. With the stated 5 % of all users,
            none of the fifteen epsilons is reproduced.
        sentences: number of sentences of all users.
        sensitive: number of sentences with an entity, by category.
    """

    name: str
    users: int
    cohort: int
    sentences: int
    sensitive: dict[str, int]


_CONLL = _Dataset(
    "CoNLL-2003", 946, 50, 14_040, {"Person": 4_406, "Org": 5_187, "Loc": 5_433, "Misc": 3_438, "all": 11_176}
)
_AG = _Dataset("AG", 7_536, 500, 112_000, {"GPE": 18_506, "Loc": 39_988, "PII": 42_683, "Org": 58_177, "all": 67_157})
_SEC = _Dataset("SEC", 1_592, 100, 5_188, {"all": 2_166, "GPE": 60, "Loc": 273, "PII": 357, "Org": 1_955})
_DATASETS = (_CONLL, _AG, _SEC)

# Data set, steps, estimator, category, epsilon: T = 50 as the text of section VI prints them, T = 500 of its curves.
_PRINTED: list[tuple[_Dataset, int, str, str, float]] = [
    (_CONLL, 50, "f_E+", "all", 0.52),
    (_CONLL, 50, "f_E", "all", 0.62),
    (_CONLL, 50, "user-level", "all", 1.18),
    (_AG, 50, "f_E+", "all", 0.50),
    (_AG, 50, "f_E", "all", 0.75),
    (_AG, 50, "user-level", "all", 1.48),
    (_SEC, 50, "f_E+", "all", 0.40),
    (_SEC, 50, "f_E", "all", 0.71),
    (_SEC, 50, "user-level", "all", 1.40),
    (_SEC, 500, "f_E+", "GPE", 0.19),
    (_SEC, 500, "f_E+", "Loc", 0.24),
    (_SEC, 500, "f_E+", "PII", 0.26),
    (_SEC, 500, "f_E+", "Org", 0.73),
    (_SEC, 500, "f_E+", "all", 0.81),
    (_SEC, 500, "user-level", "all", 4.08),
]


@dataclass(frozen=True)
class PublishedClaim:
    """One printed epsilon.

    Attributes:
        dataset: name of the data set.
        estimator: "f_E+", "f_E" or "user-level".
        entities: category of the protected entities.
        steps: number of steps T.
        published: the printed epsilon.
        claimed: epsilon of the paper's accountant with a cohort that is fitted to the data set.
        as_stated: epsilon of the paper's accountant with the stated sampling rate of 5 % of all users.
        strict: epsilon that holds if a record needs all its entities drawn and every user may name the entity; for the
            user level, the exact epsilon of the same mechanism.
        strict_any: epsilon that holds if one drawn entity suffices, as in the paper's algorithm.
    """

    dataset: str
    estimator: str
    entities: str
    steps: int
    published: float
    claimed: float
    as_stated: float
    strict: float
    strict_any: float


@dataclass(frozen=True)
class PublishedClaims(Tabular):
    """All printed epsilons, in the paper's order.

    Attributes:
        claims: the fifteen epsilons.
    """

    claims: tuple[PublishedClaim, ...]

    def heading(self) -> str:
        """Return a title for the rows."""
        return "epsilons that Lai et al. print, reproduced, and epsilons that hold (delta 1e-5, noise multiplier 2)"

    def notes(self) -> Sequence[str]:
        """Return notes about the computation of the numbers."""
        fitted = ", ".join(f"{data.cohort} of {data.users:,} ({data.name})" for data in _DATASETS)
        return (
            f"claimed: with a cohort fitted to each data set, {fitted}; as stated: with {USER_RATE:.0%} of all users",
            ASSUMED,
            "every user may name the entity; the user level is the exact epsilon of the same mechanism",
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each printed epsilon."""
        return [dataclasses.asdict(claim) for claim in self.claims]


def published_claims() -> PublishedClaims:
    """Recompute every printed epsilon (docs/theory.md#claims-of-user-entity-dp)."""
    return PublishedClaims(tuple(_recomputed()))


def _recomputed() -> Iterator[PublishedClaim]:
    for data, steps, estimator, entities, printed in _PRINTED:
        yield PublishedClaim(
            data.name,
            estimator,
            entities,
            steps,
            printed,
            _claimed(data, estimator, entities, steps),
            _claimed(data, estimator, entities, steps, USER_RATE),
            *_holds(data, estimator, steps),
        )


def _claimed(data: _Dataset, estimator: str, entities: str, steps: int, user_rate: float | None = None) -> float:
    """Return epsilon by the paper's accountant. Without a rate of users, use the rate of the fitted cohort."""
    share = data.sensitive[entities] / data.sentences if estimator == "f_E+" else 1.0
    users = data.cohort / data.users if user_rate is None else user_rate
    return moments_epsilon(NOISE, users * (1.0 if estimator == "user-level" else ENTITY_RATE * share), steps, DELTA)


def _holds(data: _Dataset, estimator: str, steps: int) -> list[float]:
    """Return the epsilons that hold by each rule."""
    rate = data.cohort / data.users
    if estimator == "user-level":
        # The sum of users has noise z, and not z (cohort + 1): entities are no part of it.
        return [accounting.epsilon(PoissonGaussian(NOISE, rate), steps, DELTA)] * 2
    # Any user may name the entity: nothing in the algorithm bounds how many do.
    event = TwoLevelGaussian(NOISE * (data.cohort + 1), rate, ENTITY_RATE, data.users)
    missed = missed_epsilon(event, steps, DELTA)
    return [max(missed, sensitive_epsilon(event, steps, DELTA, rule)) for rule in RULES]


CURVE_STEPS = (50, 100, 200, 300, 400, 500)
ESTIMATORS = ("f_E+", "f_E", "user-level")


@dataclass(frozen=True)
class ClaimCurve:
    """Epsilon over the number of steps (Figure 4 for all entities, Figure 9 by category).

    Attributes:
        dataset: name of the data set.
        estimator: "f_E+", "f_E" or "user-level".
        entities: category of the protected entities.
        steps: number of steps T of each point.
        claimed: epsilon by the paper's accountant.
        holds: epsilon that holds by rule any, the paper's algorithm. This epsilon is equal for f_E+ and f_E, and for
            every category.
    """

    dataset: str
    estimator: str
    entities: str
    steps: tuple[int, ...]
    claimed: tuple[float, ...]
    holds: tuple[float, ...]


def claim_curves(
    steps: Sequence[int] = CURVE_STEPS, *, categories: bool = False, advance: Callable[[int], object] = lambda _: None
) -> list[ClaimCurve]:
    """Compute the curves of Figure 4 or 9, and the epsilons that hold.

    Args:
        steps: number of steps T of each point.
        categories: whether f_E+ has a curve for each category of Table II, instead of one for all entities.
        advance: called with 1 after every data set.
    """
    curves = []
    for data in _DATASETS:
        users, entities = (tuple(_holds(data, which, t)[1] for t in steps) for which in ("user-level", "f_E"))
        # The paper's accountant of f_E and of users knows no category.
        asked = [("f_E+", its) for its in (data.sensitive if categories else ("all",))]
        for estimator, category in (*asked, ("f_E", "all"), ("user-level", "all")):
            claimed = tuple(_claimed(data, estimator, category, t) for t in steps)
            holds = users if estimator == "user-level" else entities
            curves.append(ClaimCurve(data.name, estimator, category, tuple(steps), claimed, holds))
        advance(1)
    return curves


def curve_table(curves: Sequence[ClaimCurve]) -> str:
    """Return the curves as plain text."""
    lines = [
        f"epsilon over steps at delta {DELTA:g} and noise multiplier {NOISE:g}: claimed by Lai et al., and valid"
        " by rule any",
        f"{'data set':<12}{'estimator':<12}{'entities':<10}{'':<9}" + "".join(f"{t:>9}" for t in curves[0].steps),
    ]
    for curve in curves:
        for name, values in (("claimed", curve.claimed), ("holds", curve.holds)):
            names = f"{curve.dataset:<12}{curve.estimator:<12}{curve.entities:<10}{name:<9}"
            lines.append(names + "".join(f"{v:>9.4g}" for v in values))
    return "\n".join(lines)


def published_table(result: PublishedClaims) -> str:
    """Return the rows as plain text."""
    lines = [
        result.heading(),
        "",
        f"{'data set':<12}{'estimator':<12}{'entities':<10}{'steps':>6}{'published':>11}{'claimed':>9}"
        f"{'as stated':>11}"
        f"{'holds, rule all':>17}{'rule any':>10}",
    ]
    for row in result.claims:
        lines.append(
            f"{row.dataset:<12}{row.estimator:<12}{row.entities:<10}{row.steps:>6}{row.published:>11.2f}"
            f"{row.claimed:>9.3f}{row.as_stated:>11.3f}{row.strict:>17.4g}{row.strict_any:>10.4g}"
        )
    return "\n".join([*lines, "", *(f"note: {note}" for note in result.notes())])
