"""The texts that the attacker of a run has of each user, and the name of their scores."""

from collections.abc import Sequence
from pathlib import Path

from heldin.attacks.config import Documents, NamedReference
from heldin.attacks.scoring import AttackTexts
from heldin.base.files import text_sha256
from heldin.jobs.config import RunConfig
from heldin.jobs.run.data import RunData
from heldin.models.loading import fingerprint_folder


def known_texts(config: RunConfig, data: RunData, users: Sequence[str], which: Documents) -> dict[str, list[str]]:
    """The texts that the attacker has of each user.

    Args:
        config: config of the run.
        data: corpus and ledger of the run; no role is looked at.
        users: the users.
        which: fresh texts, or those of training.
    """
    if which == "fresh":
        return data.attacker_texts(users)
    return data.known_training_texts(users, config.attack.training_documents, config.seed)


def texts_under_attack(config: RunConfig, data: RunData, which: Documents | None = None) -> AttackTexts:
    """The scored texts of every scored user; None: those that lead in ``attack.documents``."""
    texts = known_texts(config, data, data.ledger.scored_users(), which or config.attack.documents[0])
    return AttackTexts(texts, config.attack.max_characters)


def scores_name(config: RunConfig, texts: AttackTexts, target: str, reference: str) -> str:
    """The name that ``scores.parquet`` carries: a hash of models, texts and dials.

    Args:
        config: config of the run.
        texts: the scored texts, by user.
        target: fingerprint of the target.
        reference: fingerprint of the leading reference.
    """
    named = [Path(r.name) for r in config.attack.references if isinstance(r, NamedReference)]
    # A name is in the config already; what lies in a folder may change under the same name.
    others = [fingerprint_folder(folder) for folder in named if folder.is_dir()]
    return text_sha256(target, reference, config.attack.model_dump_json(), repr(texts.flat()), *others)
