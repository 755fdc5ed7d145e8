"""What the scores of a run say: attacks, blind baselines, bounds and verdicts, canary users apart from real ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heldin.attacks.config import Documents, NamedReference
from heldin.attacks.scoring import AttackTexts
from heldin.attacks.table import TextStatistic
from heldin.audit.assessment import Results, parts_of, results_of
from heldin.audit.canary_groups import canary_results, joined, kinds_of
from heldin.audit.exposure import Exposed, correlations, exposed_users, exposure_groups
from heldin.audit.family import variants_of
from heldin.audit.results import CanaryFacts, ExposureFacts, Judgement
from heldin.audit.scored_users import ScoredUsers, scored_users
from heldin.audit.sides import sides_of_run
from heldin.base.files import text_sha256
from heldin.base.progress import Reporter
from heldin.bounds.verdict import Claim
from heldin.corpus.split import Part
from heldin.defenses.texts.data_side import TrainingRecord
from heldin.jobs.config import RunConfig
from heldin.jobs.run.data import RunData
from heldin.models.loading import fingerprint_folder


@dataclass(frozen=True)
class Outcome:
    """The statistical part of a run's record: a function of config, ledger, scores and claims, and of nothing else.

    ``people``: every held-in user, for an owner-only file; never in the record.
    """

    results: Results
    judgement: Judgement
    canaries: CanaryFacts | None
    exposure: ExposureFacts
    people: list[Exposed]
    attacker_texts: int


def outcome_of(
    config: RunConfig,
    data: RunData,
    statistics: Sequence[TextStatistic],
    claims: Sequence[Claim],
    reporter: Reporter,
) -> Outcome:
    """Join scores with membership and judge.

    Args:
        config: of the run.
        data: its store and ledger.
        statistics: of every scored user's texts.
        claims: to test.
        reporter: where progress goes.
    """
    table = scored_users(statistics, data.membership())
    texts = documents_of(config, data, table.users, config.attack.documents[0])
    populations = 1 + len(kinds_of(data.canaries))
    parts = parts_of(len(variants_of(table.attacks, config.attack))) + 1 + bool(data.canaries)
    with reporter.track("statistics", parts, "parts") as advance:
        canaries, judgements = _canaries(config, data, statistics, claims, populations)
        if data.canaries:
            advance(1)
        real = results_of(
            table,
            texts,
            sides=sides_of_run(data.ledger.assignment),
            attack=config.attack,
            audit=config.audit,
            decision=config.decision,
            claims=claims,
            seed=config.seed,
            populations=populations,
            beside=judgements,
            advance=advance,
        )
        people = _people(config, data, table)
        advance(1)
    return Outcome(
        results=real,
        judgement=joined([real.judgement, *judgements]) if judgements else real.judgement,
        canaries=canaries,
        exposure=ExposureFacts(users=len(people), groups=exposure_groups(people), correlations=correlations(people)),
        people=people,
        attacker_texts=sum(map(len, texts.values())),
    )


def documents_of(config: RunConfig, data: RunData, users: Sequence[str], which: Documents) -> dict[str, list[str]]:
    """The documents that the attacker has of each user."""
    if which == "fresh":
        return data.attacker_texts(users)
    return data.training_documents(users, config.attack.training_documents, config.seed)


def texts_under_attack(config: RunConfig, data: RunData, which: Documents | None = None) -> AttackTexts:
    """The texts that are scored, of the leading documents unless others are named: every scored user's, no roles."""
    documents = documents_of(config, data, data.ledger.scored_users(), which or config.attack.documents[0])
    return AttackTexts(documents, config.attack.max_characters)


def scores_name(config: RunConfig, texts: AttackTexts, target: str, reference: str) -> str:
    """What ``scores.parquet`` calls itself: a hash of the models' fingerprints, of the texts and of the dials."""
    named = [Path(r.name) for r in config.attack.references if isinstance(r, NamedReference)]
    others = [fingerprint_folder(folder) for folder in named if folder.is_dir()]
    return text_sha256(target, reference, config.attack.model_dump_json(), repr(texts.flat()), *others)


def _people(config: RunConfig, data: RunData, table: ScoredUsers) -> list[Exposed]:
    records = [data.store.record(row) for row in data.training_rows]
    return exposed_users(
        table,
        [TrainingRecord(r.row, r.user, r.id, r.text) for r in records],
        attack=config.attack.primary,
        aggregation=config.attack.aggregations[0],
    )


def _canaries(
    config: RunConfig, data: RunData, statistics: Sequence[TextStatistic], claims: Sequence[Claim], populations: int
) -> tuple[CanaryFacts | None, list[Judgement]]:
    if not data.canaries:
        return None, []
    member: Mapping[str, bool] = data.canary_membership()
    training = [row for user, its in member.items() if its for row in data.ledger.parts[user][Part.TRAIN]]
    return canary_results(
        scored_users(statistics, member),
        documents_of(config, data, list(member), config.attack.documents[0]),
        data.canaries,
        training_texts=len(training),
        trained_on=len(set(training) & set(data.training_rows)),
        attack=config.attack,
        audit=config.audit,
        decision=config.decision,
        claims=claims,
        populations=populations,
        seed=config.seed,
    )
