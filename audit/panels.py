"""Judge one panel from scores and membership: the answer, attacks, blind baselines, bounds and verdicts.

``stages.sides.panels`` judges the further panels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from heldin.attacks.kinds import get_attack
from heldin.attacks.protocol import ANSWER, TextStatistic
from heldin.audit.answer import decision_facts, shown_of
from heldin.audit.attack_results import attack_results, attacker_knowledge, dial_settings
from heldin.audit.blind import Blind, blind_baselines, blind_by_chance, blind_flaws
from heldin.audit.family import ScoreFamily, family_of, variants_of
from heldin.audit.preregistration import Preregistration
from heldin.audit.results import LevelFacts, Results
from heldin.audit.scored_users import ScoredUsers, scored_users
from heldin.audit.utility import Gain, gain_of
from heldin.base.errors import ConstantScores, TooFewUsers
from heldin.base.progress import Reporter
from heldin.bounds.design import Design
from heldin.bounds.judgement import Judgement, evaluate, joined, nothing_judged
from heldin.bounds.scores import join
from heldin.bounds.verdict import Outcome
from heldin.words.answer import ComparisonFlaw
from heldin.words.evidence import REAL_USERS, SUBJECTS, Sees, Subjects, about_canaries
from heldin.words.statement import Statement


def judge(
    scores: Mapping[str, float],
    member: Mapping[str, bool],
    fixed: Preregistration,
    *,
    blind: Sequence[Blind],
    subjects: Statement = REAL_USERS,
    flawed: bool = False,
) -> Judgement:
    """Return bounds from the primary attack's scores, and a verdict on each claim.

    The config names the attack and its aggregation before any score is seen. This choice is pre-registered, so no
    correction for the other attacks is needed. The results of the other attacks are for information only.

    Args:
        scores: score of every scored user.
        fixed: how membership was decided, the claims, and delta of the bounds if no claim states one.
        subjects: the people whom the scores and bounds are about.
        flawed: whether the comparison is not valid; heldin then gives no verdict on the model.

    Raises:
        InputError: a score has no membership, delta is invalid, or ``evaluate`` refuses the input.
    """
    p_values, sides = [b.p_value for b in blind], fixed.sides
    design = Design(
        sides.assignment,
        coins_witnessed=sides.witnessed,
        blind_p_value=min(1.0, len(p_values) * min(p_values)) if p_values else None,  # Bonferroni over the baselines
        # Groups of people tested side by side are paid for as attacks are: each gets its share of alpha.
        attacks=fixed.judged,
        subjects=subjects,
        unmet=sides.unmet,
        unshown=sides.unshown if about_canaries(subjects) else (),
        uses=get_attack(fixed.attack.primary).uses,
    )
    held_in = {user for user, inside in member.items() if inside}
    try:
        # By name: a user without a score, or with one and no membership, is refused and not dropped.
        joined = join(dict(scores), held_in, set(member) - held_in)
        judgement = evaluate(joined, design, delta=fixed.delta, claims=fixed.claims)
    except (TooFewUsers, ConstantScores) as error:  # a finding, not a failure of the run
        return nothing_judged(len(member), fixed.delta, error.statement, subjects)
    if not flawed:
        return judgement
    # blind scores could have made the same rejection, so it says nothing against the model
    return replace(judgement, verdicts=tuple(replace(v, outcome=Outcome.INCONCLUSIVE) for v in judgement.verdicts))


def results_of(
    table: ScoredUsers,
    texts: Mapping[str, Sequence[str]],
    fixed: Preregistration,
    *,
    beside: Sequence[Judgement] = (),
    flaws: Sequence[Statement] = (),
    gain: Gain | None = None,
    advance: Callable[[int], object] | None = None,
) -> Results:
    """Evaluate and test every attack, run the blind baselines, judge the claims with the primary attack, and decide.

    Args:
        table: scores and membership; the reference model alone is one of the attacks.
        beside: verdicts on other people in the training (canary users), which the answer must also consider.
        flaws: reasons known beforehand why the comparison is not valid.
        gain: the model's gain on non-members; None if it was not measured.
        advance: called with 1 after each of the ``parts_of`` parts.
    """
    step = advance or (lambda _: None)
    lengths = np.array([np.mean([len(text) for text in texts[user]]) for user in table.users])
    family = family_of(table, fixed, lengths=lengths, advance=advance)
    blind = blind_baselines(table, texts, fixed)
    # Known before the verdict: a flawed comparison must not be called a violation.
    flawed = [*flaws, *blind_flaws(blind, fixed.sides), *empty_scores(family)]
    step(1)
    judgement = _judge_family(family, table, fixed, blind, SUBJECTS[fixed.wording.audited], flawed=bool(flawed))
    step(1)
    levels = [_at_level(table, replace(fixed, attack=other), blind, flaws, lengths, advance) for other in fixed.others]
    # The scored users first: ``decision_facts`` attributes violations by this order.
    judgements = [judgement, *(judged for _, judged in levels), *beside]
    attack = fixed.attack
    # One value of each user cannot be taken apart again into texts.
    knowledge = (
        []
        if get_attack(attack.primary).of_users
        else attacker_knowledge(table, attack=attack.primary, aggregation=attack.aggregations[0], seed=fixed.seed)
    )
    step(1)
    decided = decision_facts(
        family,
        fixed,
        gain=gain,
        flaws=flawed,
        judgements=judgements,
        # Where heldin drew the sides a blind alarm is a note; where somebody asserts them it is a flaw, above.
        beside=[blind_by_chance(b) for b in blind if fixed.sides.witnessed and b.separates],
    )
    return Results(
        access=attack.level,
        levels=[facts for facts, _ in levels],
        decision=decided,
        attacks=attack_results(family, fixed.audit.fprs, shown_of(decided)),
        blind=blind,
        judgement=joined(judgements),
        knowledge=knowledge,
        dials=dial_settings(family, attack),
        gain=gain,
    )


def _judge_family(
    family: ScoreFamily,
    table: ScoredUsers,
    fixed: Preregistration,
    blind: Sequence[Blind],
    subjects: Statement,
    *,
    flawed: bool,
) -> Judgement:
    return judge(
        dict(zip(table.users, family.scores[0].values.tolist(), strict=True)),
        dict(zip(table.users, table.member.tolist(), strict=True)),
        fixed,
        blind=blind,
        subjects=subjects,
        flawed=flawed,
    )


def _at_level(
    table: ScoredUsers,
    fixed: Preregistration,
    blind: Sequence[Blind],
    flaws: Sequence[Statement],
    lengths: NDArray[np.float64],
    advance: Callable[[int], object] | None,
) -> tuple[LevelFacts, Judgement]:
    """Return the answer and the judged claims for an attacker at another level.

    Args:
        fixed: the choices made beforehand, with the attacks of this attacker.
        flaws: reasons known beforehand why the comparison is not valid.
    """
    family = family_of(table, fixed, lengths=lengths, advance=advance)
    flawed = [*flaws, *blind_flaws(blind, fixed.sides), *empty_scores(family)]
    level = fixed.attack.level
    subjects = Subjects.TO_AN_ATTACKER(subjects=SUBJECTS[fixed.wording.audited], sees=Sees[level.name]())
    judged = _judge_family(family, table, fixed, blind, subjects, flawed=bool(flawed))
    decided = decision_facts(family, fixed, flaws=flawed, judgements=[judged])
    # Bounds are those of the deciding attacker's scores; a contradicted claim is contradicted by whose scores it may.
    verdicts = replace(judged, users=0, bounds=(), refused=())
    return LevelFacts(access=level, primary=fixed.attack.primary, decision=decided), verdicts


def empty_scores(family: ScoreFamily) -> list[Statement]:
    """Return a flaw for scores that are equal for all users, as with equal texts: such scores compare nothing."""
    leading = family.scores[0]
    if np.ptp(leading.values) > 0:
        return []
    return [ComparisonFlaw.SAME_SCORE(score=leading.variant.label)]


def parts_of(scores: int) -> int:
    """Return how often ``advance`` is called for a family with this number of scores."""
    # One for each score and one for the test of the family (``evaluate_family``), three in ``results_of``.
    return scores + 4


def judge_users(
    statistics: Sequence[TextStatistic],
    texts: Mapping[str, Sequence[str]],
    member: Mapping[str, bool],
    fixed: Preregistration,
    reporter: Reporter,
    *,
    beside: Sequence[Judgement] = (),
    flaws: Sequence[Statement] = (),
    with_gain: bool = True,
) -> tuple[Results, ScoredUsers]:
    """Join scores with membership, and judge the users whom the answer is about. No other function joins the two.

    Args:
        statistics: statistics of every text of the users; statistics of other users are dropped.
        texts: the attacker's texts of each user.
        member: whether each user is a member; all results use the order of this mapping.
        beside: verdicts on other panels, which the answer must also consider.
        flaws: reasons why the comparison is not valid.
        with_gain: whether a model that learned must show a gain on these texts.

    Returns:
        The results, and the scores of the users whom the answer is about.
    """
    table = scored_users(statistics, member)
    pairs = any(s.dial is not None and s.dial.name == ANSWER for s in statistics)
    parts = parts_of(len(variants_of(table.attacks, fixed.attack)))
    parts += sum(len(variants_of(table.attacks, other)) + 1 for other in fixed.others)
    with reporter.track("statistics", parts, "parts") as advance:
        results = results_of(
            table,
            {user: texts[user] for user in table.users},
            fixed,
            beside=beside,
            flaws=flaws,
            gain=gain_of(table, pairs=pairs) if with_gain else None,
            advance=advance,
        )
    return results, table
