"""The number of people with a text that a model would emit: members, and non-members as the control.

The module counts people. It returns no text, and no number about one person
(docs/decisions/0010-nobody-in-a-report.md).
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from heldin.attacks.extraction import ExtractionConfig, TextProbabilities, least_logprob
from heldin.audit.coarse import share_limits
from heldin.audit.results import Emitted, ExtractionFacts, ExtractionGroup, Group


def extraction_facts(
    probabilities: TextProbabilities, member: Mapping[str, bool], canaries: Collection[str], asked: ExtractionConfig
) -> ExtractionFacts:
    """Count people by group.

    Args:
        probabilities: the probability of each text.
        member: whether each scored user, canary users included, is a member.
        canaries: names of the canary users.
        asked: the settings of the extraction.
    """
    sides: dict[Group, list[str]] = {
        "held in": [user for user, inside in member.items() if inside and user not in canaries],
        "held out": [user for user, inside in member.items() if not inside and user not in canaries],
        "canary users held in": [user for user in canaries if member[user]],
        "canary users held out": [user for user in canaries if not member[user]],
    }
    return ExtractionFacts(
        prefix=asked.prefix,
        suffix=asked.suffix,
        temperature=asked.temperature,
        top_k=asked.top_k,
        probability=asked.probability,
        groups=[_group(name, users, probabilities, asked) for name, users in sides.items() if users],
    )


def _group(
    name: Group, users: Sequence[str], probabilities: TextProbabilities, asked: ExtractionConfig
) -> ExtractionGroup:
    number = {user: i for i, user in enumerate(users)}
    user_of = np.array([number.get(user, -1) for user in probabilities.users], dtype=np.intp)
    here = user_of >= 0
    measured = here & ~np.isnan(probabilities.target)
    known = [marks for marks in (probabilities.in_others, probabilities.in_public) if marks is not None]
    own = measured & ~np.logical_or.reduce(known) if known else None
    best = _best(probabilities.target, user_of, measured, len(users))
    best_own = None if own is None else _best(probabilities.target, user_of, own, len(users))
    reference = (
        None if probabilities.reference is None else _best(probabilities.reference, user_of, measured, len(users))
    )
    people = int(np.unique(user_of[measured]).size)
    emitted = []
    for queries in asked.queries:
        least = least_logprob(queries, asked.probability)
        count = int((best >= least).sum())
        lower, upper = share_limits(count, people) if people else (None, None)
        emitted.append(
            Emitted(
                queries=queries,
                users=count,
                lower=lower,
                upper=upper,
                only_theirs=None if best_own is None else int((best_own >= least).sum()),
                reference=None if reference is None else int((reference >= least).sum()),
            )
        )
    return ExtractionGroup(
        group=name,
        users=len(users),
        measured=people,
        texts=int(measured.sum()),
        too_short=int((here & ~measured).sum()),
        in_others=None if probabilities.in_others is None else int((measured & probabilities.in_others).sum()),
        in_public=None if probabilities.in_public is None else int((measured & probabilities.in_public).sum()),
        emitted=emitted,
    )


def _best(
    logprobs: NDArray[np.float64], user_of: NDArray[np.intp], which: NDArray[np.bool_], users: int
) -> NDArray[np.float64]:
    """Return the log-probability of each user's likeliest text, shape (users,); minus infinity without a text.

    Args:
        logprobs: log-probabilities of all texts, shape (n,).
        user_of: index of each text's user, shape (n,).
        which: True for the texts to use, shape (n,).
        users: number of users.
    """
    best = np.full(users, -np.inf)
    np.maximum.at(best, user_of[which], logprobs[which])
    return best
