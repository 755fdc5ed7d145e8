"""A private median of records per user, as group size for ELS, and one epsilon for median and training.

Charles et al. (2024), section 6, mention such a median. The mechanism is the exponential mechanism on ranks (McSherry
and Talwar 2007).
"""

import bisect
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heldin.base.errors import InputError
from heldin.base.progress import Reporter
from heldin.defenses.accounting.guarantees import composed_epsilon
from heldin.defenses.plan_file import read_plan
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.corpus import read_corpus
from heldin.stages.train.plan import data_steps

_SECRET = secrets.SystemRandom()


@dataclass(frozen=True)
class PrivateMedian:
    """A release, which may be published at its epsilon. The progress lines on the terminal are not part of the release.

    Attributes:
        median: released value, from 1 to ``at_most``.
        epsilon: pure epsilon of the release, per user, with add/remove adjacency.
        at_most: largest value that can be released, a public constant.
    """

    median: int
    epsilon: float
    at_most: int


def _check_epsilon(epsilon: float) -> None:
    if not 0.0 < epsilon < math.inf:
        raise InputError(f"--epsilon {epsilon:g}: give a number above 0")


def probabilities(counts: Sequence[int], epsilon: float, at_most: int) -> np.ndarray:
    """Return the probability of each value from 1 to ``at_most``, shape (at_most,).

    The score of a value is minus the absolute difference between the numbers of users below and above it. Adding or
    removing a user changes the score by at most 1, so the weight exp(epsilon score / 2) gives epsilon-DP.

    Args:
        counts: number of records of each user.
    """
    _check_epsilon(epsilon)
    ordered = np.sort(np.asarray(counts, dtype=np.int64))
    values = np.arange(1, at_most + 1)
    below = np.searchsorted(ordered, values, side="left")
    above = ordered.size - np.searchsorted(ordered, values, side="right")
    scores = -np.abs(below - above).astype(np.float64)
    weights = np.exp(epsilon * (scores - scores.max()) / 2.0)
    return np.asarray(weights / weights.sum())


def draw(chances: np.ndarray, uniform: Callable[[], float] = _SECRET.random) -> int:
    """Draw a value by its probability, with the operating system's random numbers."""
    return min(bisect.bisect_right(np.cumsum(chances).tolist(), uniform()), len(chances) - 1) + 1


def of_config(config: RunConfig, epsilon: float, at_most: int, reporter: Reporter) -> PrivateMedian:
    """Release the median number of records of users in a run's corpus. Every call spends ``epsilon`` again.

    Raises:
        InputError: other users decide whether a user's records are counted, which could cost more than ``epsilon``.
    """
    if leaky := [str(step.name) for step in data_steps(config) if not step.user_local]:
        raise InputError(
            f"the config looks across users ({', '.join(leaky)}), so one user may change which others are counted:"
            " use corpus.users.fraction in place of max_users, and leave out steps that compare users"
        )
    corpus = read_corpus(config, reporter)
    counts = [corpus.store.count(user) for user in corpus.audited.users]
    return PrivateMedian(draw(probabilities(counts, epsilon, at_most)), epsilon, at_most)


def together(plan: Path, spent: float) -> tuple[float, float]:
    """Return the joint epsilon of a training and a release of pure epsilon ``spent``, at the training's delta; and
    delta.

    Raises:
        InputError: the plan has no guarantee for users.
    """
    _check_epsilon(spent)
    mechanism = read_plan(plan)
    event, delta = mechanism.user_event, mechanism.delta
    # The median is private under add/remove; for users who are replaced it would cost twice as much.
    # Under user-entity DP a person's entity is in others' texts, of which the median knows nothing.
    other = mechanism.unit != "user" or mechanism.adjacency != "add_remove"
    if event is None or delta is None or other or mechanism.reasons():
        raise InputError(f"'{plan}' gives users no guarantee under add/remove: name a plan of ULS or ELS")
    return composed_epsilon([(event, mechanism.rounds)], delta, [spent]), delta


def as_dict(release: PrivateMedian, both: tuple[float, float] | None) -> dict[str, Any]:
    """Return the release and its joint cost with a training, for JSON."""
    return {**asdict(release), "with_training": both and {"epsilon": both[0], "delta": both[1]}}


def table(release: PrivateMedian, both: tuple[float, float] | None) -> str:
    """Return a text about the release and its cost."""
    lines = [
        f"median records of a user: {release.median} (epsilon {release.epsilon:g} per user, add/remove)",
        "heldin's report does not include this release: state the epsilon of both together",
    ]
    if both is not None:
        lines.append(f"with the training of the plan: epsilon {both[0]:.4g} at delta {both[1]:g}")
    return "\n".join(lines)
