"""What a rule for guessing costs against hindsight: simulated one-run audits of attackers whose law is known."""

import functools
import math

import numpy as np
from scipy import special

from heldin.bounds import one_run
from heldin.bounds.one_run import Guesses, attack_mu, guessed_out, paid_tries

DELTA, ALPHA = 1e-5, 0.05
OLD_SHARES = (0.02, 0.05, 0.1, 0.2, 0.4, 1.0)  # of m, halves in and halves out, each at a sixth of the level
_SHARES = (0.03, 0.05, 0.07, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)


@functools.cache
def epsilon(users, made, correct, level):
    return one_run.one_run_epsilon(Guesses(users, made, correct), DELTA, level)


def halves(ranked, made):
    return made // 2


def two_gaussians(ranked, made):
    """The other candidate: two Gaussians of one width, half of the users each, by EM; halves where one fits as well."""
    n = ranked.size
    low, high = ranked[: n // 2].mean(), ranked[n - n // 2 :].mean()
    whole = max(ranked.var(), 1e-300)
    variance = max(whole - (high - low) ** 2 / 4, 1e-9 * whole)
    for _ in range(200):
        belongs = special.expit((high - low) / variance * (ranked - (low + high) / 2))
        high, low = belongs @ ranked / belongs.sum(), (1 - belongs) @ ranked / (n - belongs.sum())
        spread = belongs @ (ranked - high) ** 2 + (1 - belongs) @ (ranked - low) ** 2
        variance = max(spread / n, 1e-9 * whole)
    each = np.logaddexp(-((ranked - low) ** 2) / (2 * variance), -((ranked - high) ** 2) / (2 * variance))
    gain = each.sum() - n * math.log(2) - n / 2 * math.log(variance / whole) + n / 2
    if not gain > math.log(n):
        return halves(ranked, made)
    middle = (low + high) / 2
    return int(np.count_nonzero(middle - ranked[:made] > ranked[n - made :] - middle))


def gaussian_attacker(auroc):
    """Scores N(mu, 1) of members and N(0, 1) of others; told apart without a mistake at AUROC 1."""
    mu = attack_mu(auroc) if auroc < 1.0 else 20.0
    return lambda member, rng: rng.standard_normal(member.size) + mu * member


def ranked_runs(draw, users, runs, seed=0):
    """(scores ascending, membership in this order) of simulated runs under fair coins."""
    rng = np.random.default_rng(seed)
    for _ in range(runs):
        member = rng.random(users) < 0.5
        scores = draw(member, rng)
        order = np.argsort(scores)
        yield scores[order], member[order]


def rights(member, made, low):
    """Right guesses: `low` out at the lower end, the others in at the upper."""
    return int((~member[:low]).sum() + member[member.size - made + low :].sum())


def new_bound(ranked, member, split=guessed_out):
    m = ranked.size
    return max(epsilon(m, t.made, rights(member, t.made, split(ranked, t.made)), t.level) for t in paid_tries(m))


def old_bound(member):
    m = member.size
    tries = [r for r in (max(1, round(m * share)) for share in OLD_SHARES) if 0.5**r <= ALPHA / 6]
    return max(epsilon(m, r, rights(member, r, r // 2), ALPHA / len(tries)) for r in tries)


def hindsight_median(memberships):
    """Median bound of the best number of guesses and the best share of "in" for this attacker, unpaid."""
    m = memberships[0].size
    best = 0.0
    for made in sorted({max(1, round(m * share)) for share in _SHARES}):
        for share in (0.35, 0.45, 0.5, 0.55, 0.65):
            low = round(share * made)
            found = [epsilon(m, made, rights(member, made, low), ALPHA) for member in memberships]
            best = max(best, float(np.median(found)))
    return best


def losses(auroc, users, runs, seed=0):
    """(hindsight, old, new) median bounds of an attacker."""
    drawn = list(ranked_runs(gaussian_attacker(auroc), users, runs, seed))
    memberships = [member for _, member in drawn]
    new = float(np.median([new_bound(ranked, member) for ranked, member in drawn]))
    old = float(np.median([old_bound(member) for member in memberships]))
    return hindsight_median(memberships), old, new
