"""The fifteen epsilons that Lai et al. print, our reproduction of each, and what holds of the same algorithm."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from heldin.base.tabular import Tabular
from heldin.defenses.accounting import guarantees as accounting
from heldin.defenses.accounting.events import PoissonGaussian, TwoLevelGaussian
from heldin.defenses.accounting.guarantees import missed_epsilon, moments_epsilon, sensitive_epsilon
from heldin.defenses.accounting.uedp_claims import ASSUMED, RULES

NOISE, ENTITY_RATE, DELTA = 2.0, 0.5, 1e-5  # z and q_e of section VI, for every number


@dataclass(frozen=True)
class _Dataset:
    """A row of the paper's Table II, and the cohort with which its accountant gives the printed numbers.

    Attributes:
        name: of the data set.
        users: |U|.
        cohort: expected users in a step; the paper's text says 5 % of all users, which gives other numbers.
        sentences: of all users.
        sensitive: sentences with an entity, by category.
    """

    name: str
    users: int
    cohort: int
    sentences: int
    sensitive: dict[str, int]


_CONLL = _Dataset("CoNLL-2003", 946, 50, 14_040, {"all": 11_176})
_AG = _Dataset("AG", 7_536, 500, 112_000, {"all": 67_157})
_SEC = _Dataset("SEC", 1_592, 100, 5_188, {"all": 2_166, "GPE": 60, "Loc": 273, "PII": 357, "Org": 1_955})

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
        entities: category of the entities that are protected.
        steps: T.
        published: the printed epsilon.
        claimed: the paper's accountant, reproduced.
        strict: what holds if a record needs all of its entities drawn and every user may name the entity; for the user
            level, the exact epsilon of the same mechanism.
        strict_any: what holds if one drawn entity suffices, as in the paper's algorithm.
    """

    dataset: str
    estimator: str
    entities: str
    steps: int
    published: float
    claimed: float
    strict: float
    strict_any: float


@dataclass(frozen=True)
class PublishedClaims(Tabular):
    """All of them, in the paper's order.

    Attributes:
        claims: the fifteen.
    """

    claims: tuple[PublishedClaim, ...]

    def heading(self) -> str:
        """What the rows are."""
        return "epsilons that Lai et al. print, reproduced, and what holds (delta 1e-5, noise multiplier 2)"

    def notes(self) -> Sequence[str]:
        """What the numbers rest on."""
        return (ASSUMED, "every user may name the entity; the user level is the exact epsilon of the same mechanism")

    def rows(self) -> list[dict[str, Any]]:
        """One row for each printed epsilon."""
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
            *_holds(data, estimator, steps),
        )


def _claimed(data: _Dataset, estimator: str, entities: str, steps: int) -> float:
    """Return the epsilon of the paper's accountant."""
    share = data.sensitive[entities] / data.sentences if estimator == "f_E+" else 1.0
    rate = data.cohort / data.users * (1.0 if estimator == "user-level" else ENTITY_RATE * share)
    return moments_epsilon(NOISE, rate, steps, DELTA)


def _holds(data: _Dataset, estimator: str, steps: int) -> list[float]:
    """Return what holds by either rule."""
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
    """Epsilon over the number of steps (Figure 4; of all entities).

    Attributes:
        dataset: name of the data set.
        estimator: "f_E+", "f_E" or "user-level".
        steps: T of each point.
        claimed: the paper's accountant.
        holds: what holds by rule any, the paper's algorithm; of f_E+ as of f_E.
    """

    dataset: str
    estimator: str
    steps: tuple[int, ...]
    claimed: tuple[float, ...]
    holds: tuple[float, ...]


def claim_curves(
    steps: Sequence[int] = CURVE_STEPS, advance: Callable[[int], object] = lambda _: None
) -> list[ClaimCurve]:
    """Compute the curves of Figure 4, and what holds.

    Args:
        steps: T of each point.
        advance: called with 1 after every data set.
    """
    curves = []
    for data in (_CONLL, _AG, _SEC):
        users, entities = ([_holds(data, which, t)[1] for t in steps] for which in ("user-level", "f_E"))
        for its in ESTIMATORS:
            claimed = tuple(_claimed(data, its, "all", t) for t in steps)
            holds = tuple(users if its == "user-level" else entities)
            curves.append(ClaimCurve(data.name, its, tuple(steps), claimed, holds))
        advance(1)
    return curves


def curve_table(curves: Sequence[ClaimCurve]) -> str:
    """Return the curves as plain text."""
    lines = [
        f"epsilon over steps at delta {DELTA:g} and noise multiplier {NOISE:g}: what Lai et al. claim, and what holds"
        " by rule any",
        f"{'data set':<12}{'estimator':<12}{'':<9}" + "".join(f"{t:>9}" for t in curves[0].steps),
    ]
    for curve in curves:
        for name, values in (("claimed", curve.claimed), ("holds", curve.holds)):
            lines.append(f"{curve.dataset:<12}{curve.estimator:<12}{name:<9}" + "".join(f"{v:>9.4g}" for v in values))
    return "\n".join(lines)


def published_table(result: PublishedClaims) -> str:
    """The rows as plain text for a terminal."""
    lines = [
        result.heading(),
        "",
        f"{'data set':<12}{'estimator':<12}{'entities':<10}{'steps':>6}{'published':>11}{'claimed':>9}"
        f"{'holds, rule all':>17}{'rule any':>10}",
    ]
    for row in result.claims:
        lines.append(
            f"{row.dataset:<12}{row.estimator:<12}{row.entities:<10}{row.steps:>6}{row.published:>11.2f}"
            f"{row.claimed:>9.3f}{row.strict:>17.4g}{row.strict_any:>10.4g}"
        )
    return "\n".join([*lines, "", *(f"note: {note}" for note in result.notes())])
