"""The panels of a run: real users, each kind of canary user, and users with one example. Each panel has its claims.

Panels follow from config, plan and ledger before any score exists. After the judgement, ``people_of`` lists exposed
users.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from heldin.attacks.protocol import TextStatistic
from heldin.audit.canary_groups import (
    CanaryScores,
    PlantedUsers,
    canary_facts,
    canary_scores,
    centred_statistics,
    kinds_of,
    of_canaries,
)
from heldin.audit.exposed_users import Exposed, correlations, exposed_users, exposure_groups
from heldin.audit.panels import judge, judge_users
from heldin.audit.preregistration import Panel, Preregistration, Sides
from heldin.audit.results import ExposureFacts, Results
from heldin.audit.scored_users import ScoredUsers, scored_users
from heldin.base.coins import first_in_keyed_order, seed_key
from heldin.base.progress import Reporter
from heldin.base.wording import kind_words
from heldin.bounds.design import Assignment
from heldin.bounds.judgement import Judgement
from heldin.bounds.plan_claims import claims_of, exposed_claims
from heldin.bounds.verdict import Claim
from heldin.canaries.users import Canary
from heldin.corpus.split import Part, SplitRule
from heldin.defenses.data_side.contract import TrainingRecord
from heldin.defenses.mechanism import Mechanism
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.data import RunData, writers
from heldin.words.evidence import REAL_USERS, Subjects
from heldin.words.people import AUDITED
from heldin.words.statement import Statement


@dataclass(frozen=True)
class JudgedRun:
    """The results that follow from a run's scores and membership.

    Attributes:
        texts: number of scored texts by the users whom the answer is about.
        people: every member, for a file that only its owner can read; not in the record.
    """

    results: Results
    texts: int
    people: list[Exposed]


def judge_run(
    data: RunData,
    texts: Mapping[str, Sequence[str]],
    statistics: Sequence[TextStatistic],
    fixed: Preregistration,
    reporter: Reporter,
    flaws: Sequence[Statement] = (),
) -> JudgedRun:
    """Join scores with membership, and judge each panel.

    Args:
        texts: the attacker's texts of each user.
        fixed: choices that were fixed before heldin saw any score.
        flaws: reasons why the comparison is invalid.
    """
    planted = planted_users(data) if data.canaries else None
    member = data.ledger.membership()
    results, table = judge_panels(statistics, texts, member, fixed, reporter, planted=planted, flaws=flaws)
    count = sum(len(texts[user]) for user in table.users)
    if canaries_alone(data):
        return JudgedRun(results, count, [])
    people = people_of(fixed, data, table)
    held_in = int(table.member.sum())
    exposure = ExposureFacts(
        users=len(people),
        of=held_in if held_in > len(people) else None,
        groups=exposure_groups(people),
        correlations=correlations(people),
    )
    return JudgedRun(results.model_copy(update={"exposure": exposure}), count, people)


def judge_panels(
    statistics: Sequence[TextStatistic],
    texts: Mapping[str, Sequence[str]],
    member: Mapping[str, bool],
    fixed: Preregistration,
    reporter: Reporter,
    *,
    planted: PlantedUsers | None = None,
    flaws: Sequence[Statement] = (),
) -> tuple[Results, ScoredUsers]:
    """Judge the real users and each further panel with ``judge_users``.

    If there are no real users, the answer is about canary users. Each of their scores then has its group's median
    subtracted.

    Args:
        member: whether each scored user is a member, including canary users.
        planted: the canary users; None if there are none.
    """
    canaries = planted.canaries if planted else {}
    real = {user: held_in for user, held_in in member.items() if user not in canaries}
    of_them = {user: member[user] for user in sorted(canaries)}
    alone = bool(canaries) and not real
    # Canary users first: a claim that they violate is contradicted for the training, and the answer must say so.
    judgements: list[Judgement] = []
    facts = None
    if planted:
        with reporter.track("statistics of canary users", 1, "parts") as advance:
            own_texts = {user: texts[user] for user in of_them}
            compared = canary_scores(scored_users(statistics, of_them), own_texts, canaries, fixed)
            kinds = [panel for panel in fixed.panels if panel.kind is not None and not panel.part]
            judgements = [_judged(panel, statistics, member, fixed, compared, flaws) for panel in kinds]
            facts = canary_facts(compared, own_texts, planted, fixed, [] if alone else judgements, flaws)
            advance(1)
    judgements += [_judged(panel, statistics, member, fixed, None, flaws) for panel in fixed.panels if panel.part]
    results, table = judge_users(
        centred_statistics(statistics, canaries, fixed) if alone else statistics,
        texts,
        of_them if alone else real,
        fixed,
        reporter,
        beside=judgements,
        flaws=flaws,
        # Canary users' texts are unlike any others: on them no gain is expected of a model that learned.
        with_gain=not alone,
    )
    return results.model_copy(update={"canaries": facts}), table


def _judged(
    panel: Panel,
    statistics: Sequence[TextStatistic],
    member: Mapping[str, bool],
    fixed: Preregistration,
    canaries: CanaryScores | None,
    flaws: Sequence[Statement],
) -> Judgement:
    """Test the claims of a panel with the primary attack.

    Args:
        canaries: scores within groups, for canary users of one kind; None: compare scores directly.
    """
    if canaries is not None:
        fixed, scores = of_canaries(fixed), canaries.centred
    else:
        scores = _leading_scores(panel, statistics, member, fixed)
    judged = judge(
        {user: scores[user] for user in panel.users},
        {user: member[user] for user in panel.users},
        replace(fixed, claims=panel.claims),
        blind=[] if canaries is None else canaries.blind,
        subjects=panel.subjects,
        flawed=bool(flaws),
    )
    if not panel.part:
        return judged
    # Bounds would be about a part of those whom the other panel's bounds are about.
    return replace(judged, delta=fixed.delta, bounds=(), refused=() if judged.verdicts else judged.refused)


def _leading_scores(
    panel: Panel, statistics: Sequence[TextStatistic], member: Mapping[str, bool], fixed: Preregistration
) -> dict[str, float]:
    users = set(panel.users)
    if not users:
        return {}
    table = scored_users([s for s in statistics if s.user in users], {user: member[user] for user in panel.users})
    scores = table.scores(fixed.attack.primary, fixed.attack.aggregations[0]).tolist()
    return dict(zip(table.users, scores, strict=True))


def canaries_alone(data: RunData) -> bool:
    """Return whether no real user is audited, so the answer is about canary users."""
    return bool(data.canaries) and not data.real(data.ledger.scored_users())


def planted_users(data: RunData) -> PlantedUsers:
    """Return the canary users, with the number of their texts for training, and the number that training used."""
    held_in = (user for user, member in data.canary_membership().items() if member)
    training = [row for user in held_in for row in data.ledger.parts[user][Part.TRAIN]]
    # Rows are unique: what a defense on the data side left of them.
    trained_on = int(np.isin(data.training_rows, training).sum())
    return PlantedUsers(data.canaries, len(training), trained_on, len(data.of_real_rows))


def preregistered(config: RunConfig, data: RunData, plan: Mechanism) -> Preregistration:
    """Return the choices that a run fixes before heldin sees any score. The claims are the plan's claims."""
    panels = kind_panels(data, claims_by_kind(plan, data.canaries))
    fixed = Preregistration(
        config.attack,
        config.audit,
        config.decision,
        sides_of_run(data.ledger.assignment),
        claims_on(plan, data),
        config.seed,
        1 + len(panels),
        AUDITED[config.split.audited.value],
        panels,
    )
    return fixed.by_level(None if config.release is None else config.release.access)


def kind_panels(data: RunData, claims: Mapping[str, Sequence[Claim]]) -> list[Panel]:
    """Return a panel for each kind of canary user; empty if the answer is already about the only kind.

    The kinds are fixed before any result. Choosing the kind that leaks most would need a correction.

    Args:
        claims: claims to test on each kind, by kind.
    """
    kinds = kinds_of(data.canaries)
    if number_of_groups(len(kinds), canaries_alone=canaries_alone(data)) == 1:
        return []
    return [Panel(_subjects_of(kind), users_of_kind(data, kind), claims[kind], kind) for kind in kinds]


def example_panels(data: RunData, claims: Sequence[Claim]) -> list[Panel]:
    """Return panels of the users and canary users with exactly one training row; empty without claims.

    Removing such a user removes one example. A claim about examples alone guarantees nothing to other users.

    Args:
        claims: claims about single examples.
    """
    if not claims:
        return []
    one_row = [user for user in data.ledger.scored_users() if len(data.for_training(user)) == 1]
    groups: list[tuple[Statement, list[str]]] = []
    if not canaries_alone(data):
        groups.append((REAL_USERS, data.real(one_row)))
    for kind in kinds_of(data.canaries):
        groups.append((_subjects_of(kind), [user for user in users_of_kind(data, kind) if user in set(one_row)]))
    return [Panel(Subjects.WITH_ONE_EXAMPLE(subjects=subjects), users, claims, part=True) for subjects, users in groups]


def number_of_groups(kinds: int, *, canaries_alone: bool) -> int:
    """Return the number of panels for this many kinds of canary users, without panels of users with one example."""
    return 1 if canaries_alone and kinds == 1 else 1 + kinds


def users_of_kind(data: RunData, kind: str) -> list[str]:
    """Return the canary users of a kind."""
    return [user for user, canary in data.canaries.items() if canary.kind == kind]


def claims_on(plan: Mechanism, data: RunData) -> list[Claim]:
    """Return the plan's claims to test on real users and entities. The claim holds for each person, so heldin uses the
    claim for the most exposed person.

    For entities, the claim is the guarantee of text sampling for their number of records
    (docs/theory.md#audits-of-entities).
    """
    ledger = data.ledger
    if not ledger.entities:
        return claims_of(plan)
    # After caps: others were never to be trained on, whatever the coin.
    exposed = max(len(data.for_training(name)) for name in data.real(ledger.scored_users()))
    if plan.entity_cap is not None:
        users = ledger.entities < set(data.real(ledger.scored_users()))
        exposed = max(plan.entity_cap, plan.group_size if users else 0)
    return exposed_claims(plan, exposed)


def claims_by_kind(plan: Mechanism, canaries: Mapping[str, Canary]) -> dict[str, list[Claim]]:
    """Return the guarantee for each kind of canary user. With text sampling, the guarantee depends on the user's number
    of records."""
    claims = dict.fromkeys(kinds_of(canaries), claims_of(plan))
    documents = [canary.documents for canary in canaries.values() if canary.documents is not None]
    if len(documents) < len(canaries):  # all that a real user has
        return claims
    # A canary user is an author too, whose records a cap limits.
    cap = plan.group_size if plan.entity_cap is not None else max(documents, default=0)
    for kind in claims:
        most = max(canary.documents or 0 for canary in canaries.values() if canary.kind == kind)
        claims[kind] = exposed_claims(plan, min(most, cap)) or claims[kind]
    return claims


def _subjects_of(kind: str) -> Statement:
    return Subjects.CANARIES_OF_KIND(kind=kind_words(kind, "-"))


def people_of(fixed: Preregistration, data: RunData, table: ScoredUsers) -> list[Exposed]:
    """Return the members, most exposed first.

    heldin reads the records of at most ``audit.exposure_users`` members. To compare words, it also reads the records of
    as many other people.

    Args:
        table: the scored users.
    """
    most, owners = fixed.audit.exposure_users, data.ledger.owners()
    wrote = writers(data.store, data.training_rows)
    number = {name: i for i, name in enumerate(wrote.names)}
    # An audited entity's records are its own here, whoever wrote them.
    of_entities = {name: len(number) + i for i, name in enumerate(sorted(set(owners.values())))}
    whose = wrote.places.astype(np.int64)
    if owners:
        entity = np.array([of_entities.get(owners.get(row, ""), -1) for row in data.training_rows.tolist()])
        whose = np.where(entity >= 0, entity, whose)
    listed = [name for name, held_in in zip(table.users, table.member, strict=True) if held_in]
    of_listed = set(listed)
    there = {name: i for name, i in {**number, **of_entities}.items() if name not in of_listed}
    present = np.zeros(len(number) + len(of_entities), dtype=np.bool_)
    present[whose] = True
    others = [name for name, i in there.items() if present[i]]
    shown = _sample(fixed.seed, "exposed", listed, most)
    beside = _sample(fixed.seed, "words of others", others, most)
    every = {**number, **of_entities}
    wanted = np.zeros_like(present)
    wanted[[every[name] for name in (*shown, *beside) if name in every]] = True
    rows = data.training_rows[wanted[whose]]
    records = [
        TrainingRecord(record.row, owners.get(record.row, record.user), record.id, data.training_document(record.row))
        for record in map(data.store.record, rows.tolist())
    ]
    return exposed_users(
        table,
        records,
        attack=fixed.attack.primary,
        aggregation=fixed.attack.aggregations[0],
        listed=frozenset(shown),
        trained_on=data.training_rows.size,
    )


def _sample(seed: int, purpose: str, names: Sequence[str], most: int) -> list[str]:
    """Return at most ``most`` of the names, in a public order that does not depend on scores."""
    if len(names) <= most:
        return list(names)
    return [names[i] for i in first_in_keyed_order(seed_key(seed), purpose, names, most)]


def sides_of_run(assignment: SplitRule) -> Sides:
    """Return how a run assigned users to groups: by coins that heldin drew, or as an exact half."""
    return Sides(Assignment.COIN if assignment is SplitRule.COIN else Assignment.FIXED, witnessed=True)
