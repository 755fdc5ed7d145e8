"""What the scores of a run say: attacks, blind baselines, bounds and verdicts, canary users apart from real ones."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from attacks.scoring import AttackTexts, TextStatistic
from audit.attacker import Documents, NamedReference
from audit.canary_results import canary_results, joined, kinds_of
from audit.config import RunConfig
from audit.data import RunData
from audit.evaluation import REFERENCE_ALONE
from audit.exposure import SHOWN, exposure
from audit.record_results import (
    AttackResult,
    Blind,
    CanaryFacts,
    DialSetting,
    ExposedUser,
    ExposureCorrelation,
    ExposureFacts,
    Judgement,
    KnowledgePoint,
)
from audit.results import results_of
from audit.verdict import Assignment, Claim
from corpus.files import text_sha256
from corpus.split import Assignment as SplitAssignment
from corpus.split import Part
from defenses.data_side import TrainingRecord
from models.loading import fingerprint_folder


@dataclass(frozen=True)
class Outcome:
    """The statistical part of a run's record: a function of config, ledger, scores and claims, and of nothing else."""

    attacks: list[AttackResult]
    blind: list[Blind]
    judgement: Judgement
    canaries: CanaryFacts | None
    knowledge: list[KnowledgePoint]
    dials: list[DialSetting]
    exposure: ExposureFacts
    attacker_texts: int


def outcome_of(
    config: RunConfig, data: RunData, statistics: Sequence[TextStatistic], claims: Sequence[Claim]
) -> Outcome:
    """Join scores with membership and judge.

    Args:
        config: of the run.
        data: its store and ledger.
        statistics: of every scored user's texts.
        claims: to test.
    """
    member = data.membership()
    texts = documents_of(config, data, list(member), config.attack.documents[0])
    populations = 1 + len(kinds_of(data.canaries))
    coins = data.ledger.assignment is SplitAssignment.COIN
    real = results_of(
        [s for s in statistics if s.user in member],
        texts,
        member,
        attack=config.attack,
        audit=config.audit,
        assignment=Assignment.COIN if coins else Assignment.FIXED,
        coins_witnessed=True,
        claims=claims,
        seed=config.seed,
        populations=populations,
    )
    canaries, judgements = _canaries(config, data, statistics, claims, populations)
    judgement = joined([real.judgement, *judgements]) if judgements else real.judgement
    exposed = _exposure(config, data, [s for s in statistics if s.user in member], member)
    scored = sum(map(len, texts.values()))
    return Outcome(real.attacks, real.blind, judgement, canaries, real.knowledge, real.dials, exposed, scored)


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


def _exposure(
    config: RunConfig, data: RunData, statistics: Sequence[TextStatistic], member: Mapping[str, bool]
) -> ExposureFacts:
    records = [data.store.record(row) for row in data.training_rows]
    users, correlations = exposure(
        statistics,
        member,
        [TrainingRecord(r.row, r.user, r.id, r.text) for r in records],
        attack=config.attack.primary,
        aggregation=config.attack.aggregations[0],
        reference_alone=REFERENCE_ALONE,
        key=data.ledger.key,
    )
    return ExposureFacts(
        users=len(users),
        most_exposed=[ExposedUser(**asdict(user)) for user in users[:SHOWN]],
        correlations=[ExposureCorrelation(**asdict(its)) for its in correlations],
    )


def _canaries(
    config: RunConfig, data: RunData, statistics: Sequence[TextStatistic], claims: Sequence[Claim], populations: int
) -> tuple[CanaryFacts | None, list[Judgement]]:
    if not data.canaries:
        return None, []
    member = data.canary_membership()
    training = [row for user, its in member.items() if its for row in data.ledger.parts[user][Part.TRAIN]]
    return canary_results(
        [s for s in statistics if s.user in member],
        documents_of(config, data, list(member), config.attack.documents[0]),
        member,
        data.canaries,
        training_texts=len(training),
        trained_on=len(set(training) & set(data.training_rows)),
        attack=config.attack,
        audit=config.audit,
        claims=claims,
        populations=populations,
        seed=config.seed,
    )
