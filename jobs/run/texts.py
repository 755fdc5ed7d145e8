"""What the attacker of a run has of each user: the texts that are scored, and what their scores are called."""

from collections.abc import Sequence
from pathlib import Path

from heldin.attacks.config import Documents, NamedReference
from heldin.attacks.scoring import AttackTexts
from heldin.base.files import text_sha256
from heldin.jobs.config import RunConfig
from heldin.jobs.run.data import RunData
from heldin.models.loading import fingerprint_folder


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
