"""Everything that scores and membership say together: the answer, attacks, blind baselines, bounds and verdicts."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from heldin.attacks.statistics import is_of_users
from heldin.audit.answer import decision_facts, shown_of
from heldin.audit.attack_results import attack_results, dial_settings
from heldin.audit.blind import blind_baselines, blind_by_chance, blind_flaws
from heldin.audit.family import Family, family_of
from heldin.audit.judge import judge
from heldin.audit.knowledge import attacker_knowledge
from heldin.audit.preregistration import Preregistration
from heldin.audit.results import Results
from heldin.audit.scored_users import ScoredUsers
from heldin.bounds.judgement import Judgement, joined
from heldin.words import Statement
from heldin.words.answer import ComparisonFlaw


def results_of(
    table: ScoredUsers,
    texts: Mapping[str, Sequence[str]],
    fixed: Preregistration,
    *,
    beside: Sequence[Judgement] = (),
    flaws: Sequence[Statement] = (),
    advance: Callable[[int], object] | None = None,
) -> Results:
    """Evaluate and test every attack, run the blind baselines, judge the claims by the leading attack, and decide.

    Args:
        table: scores and membership; the reference alone is one of the attacks.
        beside: verdicts from other people in the same training (canary users), which the answer must take into account.
        flaws: reasons known beforehand why the comparison is not valid.
        advance: called with 1 after each of the ``parts_of`` parts.
    """
    step = advance or (lambda _: None)
    lengths = np.array([np.mean([len(text) for text in texts[user]]) for user in table.users])
    family = family_of(table, fixed, lengths=lengths, advance=advance)
    blind = blind_baselines(table, texts, fixed)
    # Known before the verdict: a flawed comparison must not be called a violation.
    flawed = [*flaws, *blind_flaws(blind, fixed.sides), *empty_scores(family)]
    step(1)
    judgement = judge(
        dict(zip(table.users, family.scores[0].values.tolist(), strict=True)),
        dict(zip(table.users, table.member.tolist(), strict=True)),
        fixed,
        blind=blind,
        subjects=fixed.wording.subjects,
        flawed=bool(flawed),
    )
    step(1)
    # The scored users first: ``decision_facts`` attributes violations by this order.
    judgements = [judgement, *beside]
    attack = fixed.attack
    # One value of each user cannot be taken apart again into texts.
    knowledge = (
        []
        if is_of_users(attack.primary)
        else attacker_knowledge(table, attack=attack.primary, aggregation=attack.aggregations[0], seed=fixed.seed)
    )
    step(1)
    decided = decision_facts(
        family,
        fixed,
        flaws=flawed,
        judgements=judgements,
        # Where heldin drew the sides a blind alarm is a note; where somebody asserts them it is a flaw, above.
        beside=[blind_by_chance(b) for b in blind if fixed.sides.witnessed and b.separates],
    )
    return Results(
        decision=decided,
        attacks=attack_results(family, fixed.audit.fprs, shown_of(decided)),
        blind=blind,
        judgement=joined(judgements),
        knowledge=knowledge,
        dials=dial_settings(family, attack),
    )


def empty_scores(family: Family) -> list[Statement]:
    """A flaw if all users have the same score, as when all texts are equal: then nothing is compared."""
    leading = family.scores[0]
    if np.ptp(leading.values) > 0:
        return []
    return [ComparisonFlaw.SAME_SCORE(score=leading.variant.label)]


def parts_of(scores: int) -> int:
    """Return the number of calls of ``advance`` for a family of this many scores."""
    # One for each score and one for the test of the family (``evaluate_family``), three in ``results_of``.
    return scores + 4
