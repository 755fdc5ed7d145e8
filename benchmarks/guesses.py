"""How heldin chose the number of guesses of a one-run audit, and of "in" guesses: `python benchmarks/guesses.py`.

The measure is the median certified epsilon (one-run bound, delta 1e-5, 95 %) of simulated audits with fair coins. The
first comparison is with hindsight: the attacker's best number of guesses and best share of "in", at no cost. The second
compares rules for the share of "in": as many in as out; by distance from the mean of the middle half (the rule in use);
by a fit of two Gaussians. Takes ten minutes; one thread: set OMP_NUM_THREADS=1.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from heldin.bounds.one_run import Guesses, attack_mu, guessed_out, one_run_epsilon
from tests.coverage.mechanisms import one_sided, randomised_response, subsampled
from tests.hindsight import ALPHA, DELTA, gaussian_attacker, halves, losses, new_bound, ranked_runs, two_gaussians

Array = NDArray[np.float64]
Draw = Callable[[NDArray[np.bool_], np.random.Generator], Array]

RULES = {"halves": halves, "middle half": guessed_out, "two Gaussians": two_gaussians}


def heavy_tailed(member: NDArray[np.bool_], rng: np.random.Generator) -> Array:
    return np.asarray(rng.standard_t(3, member.size) + 1.25 * member)


def of_users_of_all_sizes(member: NDArray[np.bool_], rng: np.random.Generator) -> Array:
    """Draw a log-likelihood ratio over texts with lognormal lengths."""
    length = rng.lognormal(0.0, 1.0, member.size)
    return np.asarray(length * attack_mu(0.75) * (member - 0.5) + np.sqrt(length) * rng.standard_normal(member.size))


def ratio_not_its_logarithm(member: NDArray[np.bool_], rng: np.random.Generator) -> Array:
    return np.exp(gaussian_attacker(0.75)(member, rng))


def exposed(share: float, by: float) -> Draw:
    """Draw scores in which only a share of the members is exposed."""

    def draw(member: NDArray[np.bool_], rng: np.random.Generator) -> Array:
        return np.asarray(rng.standard_normal(member.size) + by * (member & (rng.random(member.size) < share)))

    return draw


def all_right(users: int) -> float:
    return one_run_epsilon(Guesses(users, users, users), DELTA, ALPHA)


SCORES: dict[str, Draw] = {
    **{f"Gaussian, AUROC {a:g}": gaussian_attacker(a) for a in (0.6, 0.75, 0.9, 0.99, 1.0)},
    "Student's t, 3 degrees": heavy_tailed,
    "users of all sizes": of_users_of_all_sizes,
    "a ratio, not its logarithm": ratio_not_its_logarithm,
    "half of the members exposed by 3": exposed(0.5, 3.0),
    "half of the members exposed by 6": exposed(0.5, 6.0),
    "nine tenths exposed by 6": exposed(0.9, 6.0),
    "subsampled Gaussian, epsilon 4": subsampled(4.0).draw,
    "randomised response, epsilon 4": randomised_response(4.0).draw,
    "told of the held-in only, epsilon 4": one_sided(4.0).draw,
}


def main() -> None:
    print("median epsilon >=, against hindsight")
    print(f"{'users':>6} {'AUROC':>6} {'hindsight':>10} {'six, halves':>12} {'loss':>7} {'now':>7} {'loss':>7}")
    for users, runs in ((100, 2000), (300, 1000), (1000, 1000), (5000, 200)):
        for auroc in (0.6, 0.75, 0.9, 0.95, 0.99, 1.0):
            best, old, new = losses(auroc, users, runs)
            best = max(best, all_right(users)) if auroc == 1.0 else best
            lost = [f"{100 * (1 - x / best):.1f} %" if best else "-" for x in (old, new)]
            print(f"{users:>6} {auroc:>6g} {best:>10.3f} {old:>12.3f} {lost[0]:>7} {new:>7.3f} {lost[1]:>7}")
    print(f"\n{'scores of 1,000 users':<38}" + "".join(f"{name:>16}" for name in RULES))
    for name, draw in SCORES.items():
        drawn = list(ranked_runs(draw, 1000, 200, seed=1))
        medians = [np.median([new_bound(s, m, rule) for s, m in drawn]) for rule in RULES.values()]
        print(f"{name:<38}" + "".join(f"{median:>16.3f}" for median in medians))


if __name__ == "__main__":
    main()
