"""What the scores of a run say: real users and canary users judged separately, and who is exposed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from heldin.attacks.protocol import TextStatistic
from heldin.audit.assessment import parts_of, results_of
from heldin.audit.canary_groups import CanaryFacts, canary_results, centred_statistics, kinds_of
from heldin.audit.exposure import Exposed, ExposureFacts, correlations, exposure_groups
from heldin.audit.extraction import ExtractionFacts
from heldin.audit.family import variants_of
from heldin.audit.judge import judge
from heldin.audit.preregistration import Preregistration, sides_of_run
from heldin.audit.results import Results
from heldin.audit.scored_users import scored_users
from heldin.audit.utility import UserLoss
from heldin.base.progress import Reporter
from heldin.bounds.claims import claims_of, exposed_claims
from heldin.bounds.judgement import Judgement
from heldin.bounds.verdict import Claim
from heldin.canaries.kinds import Canary
from heldin.corpus.split import Part
from heldin.defenses.mechanism import Mechanism
from heldin.jobs.config import RunConfig
from heldin.jobs.run.data import RunData
from heldin.jobs.run.people import people_of
from heldin.record.precision import PrecisionFacts
from heldin.words import Statement
from heldin.words.evidence import REAL_USERS, Subjects
from heldin.words.people import AUDITED


@dataclass(frozen=True)
class RunResults:
    """What scores and membership of a run say together.

    Attributes:
        results: the results for the record.
        texts: number of scored texts of real users.
        people: every held-in user, for an owner-only file; never in the record.
        losses: of held-out users' test texts, by user; empty where they were not measured.
        precision: of scoring, where it is not float32.
        extraction: what sampling would emit of training texts; None where it was not asked for.
    """

    results: Results
    texts: int
    people: list[Exposed]
    losses: Mapping[str, UserLoss] = field(default_factory=dict)
    precision: PrecisionFacts | None = None
    extraction: ExtractionFacts | None = None


def run_results(
    data: RunData,
    texts: Mapping[str, Sequence[str]],
    statistics: Sequence[TextStatistic],
    fixed: Preregistration,
    reporter: Reporter,
    flaws: Sequence[Statement] = (),
) -> RunResults:
    """Join scores with membership and judge."""
    if canaries_alone(data):
        return _canaries_alone(data, texts, statistics, fixed, reporter, flaws)
    # But for the curves of training this is the one place where scores meet roles.
    table = scored_users(statistics, data.ledger.membership(without=data.canaries))
    of_people = {user: texts[user] for user in table.users}
    parts = parts_of(len(variants_of(table.attacks, fixed.attack))) + 1 + bool(data.canaries)
    with reporter.track("statistics", parts, "parts") as advance:
        # Canary users first: a claim that they violate is violated for the training, and the answer must say so.
        canaries, judgements = _canaries(data, texts, statistics, fixed, flaws)
        if fixed.example_claims:
            judgements += _of_one_example(data, statistics, fixed, flaws)
        if data.canaries:
            advance(1)
        real = results_of(table, of_people, fixed, beside=judgements, flaws=flaws, advance=advance)
        people = people_of(fixed, data, table)
        advance(1)
    exposure = ExposureFacts(
        users=len(people),
        of=held_in if (held_in := int(table.member.sum())) > len(people) else None,
        groups=exposure_groups(people),
        correlations=correlations(people),
    )
    whole = real.model_copy(update={"canaries": canaries, "exposure": exposure})
    return RunResults(whole, sum(map(len, of_people.values())), people)


def canaries_alone(data: RunData) -> bool:
    """Whether no real user is audited, so that canary users stand for them."""
    return bool(data.canaries) and not data.real(data.ledger.scored_users())


def groups_judged(data: RunData) -> int:
    """Groups of people on whom claims are tested side by side, each at its share of the level."""
    return groups_of(len(kinds_of(data.canaries)), canaries_alone=canaries_alone(data))


def groups_of(kinds: int, *, canaries_alone: bool) -> int:
    """Return the number of groups of people, for so many kinds of canary users."""
    # Canary users alone: all of them, and each kind where there are several.
    return 1 if canaries_alone and kinds == 1 else 1 + kinds


def preregistered(config: RunConfig, data: RunData, plan: Mechanism) -> Preregistration:
    """What a run fixes before any score: the claims are its plan's.

    Args:
        plan: the mechanism of the plan.
    """
    return Preregistration(
        config.attack,
        config.audit,
        config.decision,
        sides_of_run(data.ledger.assignment),
        claims_on(plan, data),
        config.seed,
        # Real users and each kind of canary users are judged on the same claims.
        groups_judged(data),
        _canary_claims(plan, data.canaries),
        AUDITED[config.split.audited.value],
    )


def claims_on(plan: Mechanism, data: RunData) -> list[Claim]:
    """What the audit of real users and entities tests of the plan: of each of them, and so of the most exposed.

    Of entities that is text sampling's promise to people of so many records (docs/theory.md#audits-of-entities).
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


def _canary_claims(plan: Mechanism, canaries: Mapping[str, Canary]) -> dict[str, list[Claim]]:
    """By kind, what the plan promises its canary users: text sampling, to people of as many records as they have."""
    found = dict.fromkeys((kind.value for kind in kinds_of(canaries)), claims_of(plan))
    documents = [canary.documents for canary in canaries.values() if canary.documents is not None]
    if len(documents) < len(canaries):  # all that a real user has
        return found
    # A canary user is an author too, whose records a cap limits.
    cap = plan.group_size if plan.entity_cap is not None else max(documents, default=0)
    for kind in kinds_of(canaries):
        most = max(canary.documents or 0 for canary in canaries.values() if canary.kind is kind)
        found[kind.value] = exposed_claims(plan, min(most, cap)) or found[kind.value]
    return found


def _of_one_example(
    data: RunData, statistics: Sequence[TextStatistic], fixed: Preregistration, flaws: Sequence[Statement]
) -> list[Judgement]:
    """Verdicts on claims about single examples, on users and canary users with exactly one row to train on."""
    # To leave out such a user is to leave out one example; of others the claim promises nothing by itself.
    one = {user for user in data.ledger.scored_users() if len(data.for_training(user)) == 1}
    member = {user: its for user, its in data.ledger.membership().items() if user in one}
    table = scored_users([its for its in statistics if its.user in one], member)
    scores = table.scores(fixed.attack.primary, fixed.attack.aggregations[0]).tolist() if one else []
    values = dict(zip(table.users, scores, strict=True))
    groups = {} if canaries_alone(data) else {REAL_USERS: data.real(one)}
    for kind in kinds_of(data.canaries):
        of_kind = [user for user, canary in data.canaries.items() if canary.kind is kind]
        groups[Subjects.CANARIES_OF_KIND(kind=kind.replace("_", "-"))] = [user for user in of_kind if user in one]
    found = []
    for subjects, users in groups.items():
        judged = judge(
            {user: values[user] for user in users},
            {user: member[user] for user in users},
            replace(fixed, claims=fixed.example_claims),
            blind=[],
            subjects=Subjects.WITH_ONE_EXAMPLE(subjects=subjects),
            flawed=bool(flaws),
        )
        # Their bounds would be about a part of those of whom the others are.
        refused = () if judged.verdicts else judged.refused
        found.append(replace(judged, delta=fixed.delta, bounds=(), refused=refused))
    return found


def _canaries_alone(
    data: RunData,
    texts: Mapping[str, Sequence[str]],
    statistics: Sequence[TextStatistic],
    fixed: Preregistration,
    reporter: Reporter,
    flaws: Sequence[Statement],
) -> RunResults:
    """Judge canary users in the place of real users, by scores minus their group's median."""
    table = scored_users(centred_statistics(statistics, data.canaries, fixed), data.canary_membership())
    of_people = {user: texts[user] for user in table.users}
    parts = parts_of(len(variants_of(table.attacks, fixed.attack))) + 1
    with reporter.track("statistics", parts, "parts") as advance:
        canaries, by_kind = _canaries(data, texts, statistics, fixed, flaws)
        # Of one kind the judgement would be that of all, and their answer is the answer.
        judgements = by_kind if len(by_kind) > 1 else []
        if fixed.example_claims:
            judgements += _of_one_example(data, statistics, fixed, flaws)
        advance(1)
        found = results_of(table, of_people, fixed, beside=judgements, flaws=flaws, advance=advance)
    assert canaries is not None
    facts = canaries.model_copy(update={"decision": None, "blind": []})
    whole = found.model_copy(update={"canaries": facts})
    return RunResults(whole, sum(map(len, of_people.values())), [])


def _canaries(
    data: RunData,
    texts: Mapping[str, Sequence[str]],
    statistics: Sequence[TextStatistic],
    fixed: Preregistration,
    flaws: Sequence[Statement],
) -> tuple[CanaryFacts | None, list[Judgement]]:
    if not data.canaries:
        return None, []
    member: Mapping[str, bool] = data.canary_membership()
    training = [row for user, its in member.items() if its for row in data.ledger.parts[user][Part.TRAIN]]
    return canary_results(
        scored_users(statistics, member),
        {user: texts[user] for user in member},
        data.canaries,
        fixed,
        training_texts=len(training),
        # Rows are unique: what a defense on the data side left of them.
        trained_on=int(np.isin(data.training_rows, training).sum()),
        flaws=flaws,
    )
