"""What is scored in a run: the texts that the attacker has of each user, the models, and the name of the scores."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heldin.attacks.config import Documents, NamedReference
from heldin.attacks.scoring import AttackTexts
from heldin.base.files import text_sha256
from heldin.defenses.mechanism import Mechanism
from heldin.models.model_names import fingerprint_folder
from heldin.stages.config import RunConfig
from heldin.stages.sides.data import RunData
from heldin.stages.train.models import Models


def known_texts(config: RunConfig, data: RunData, users: Sequence[str], which: Documents) -> dict[str, list[str]]:
    """The texts that the attacker has of each user.

    Args:
        users: the users.
        which: fresh texts, or those of training.
    """
    if which == "fresh":
        return data.attacker_texts(users)
    return data.known_training_texts(users, config.attack.training_documents, config.seed)


def texts_under_attack(config: RunConfig, data: RunData, which: Documents | None = None) -> AttackTexts:
    """The scored texts of every scored user; None: those that lead in ``attack.documents``."""
    texts = known_texts(config, data, data.ledger.scored_users(), which or config.attack.documents[0])
    return AttackTexts(texts, config.attack.max_characters, data.parts)


def scores_name(config: RunConfig, texts: AttackTexts, target: str, reference: str) -> str:
    """The name that ``scores.parquet`` carries: a hash of models, texts and dials."""
    named = [Path(r.name) for r in config.attack.references if isinstance(r, NamedReference)]
    # A name is in the config already; what lies in a folder may change under the same name.
    others = [fingerprint_folder(folder) for folder in named if folder.is_dir()]
    if texts.parts is not None:
        others.append(repr(texts.spans()))
    return text_sha256(target, reference, config.attack.model_dump_json(), repr(texts.flat()), *others)


@dataclass(frozen=True)
class Scoring:
    """What the scoring stage works on.

    Attributes:
        config: config of the run.
        data: corpus and ledger of the run; no audited user's role is looked at.
        models: target, leading reference, and the name to load the base model by.
        mechanism: the mechanism of the run, for shadow models; None where nothing is trained.
        texts: the scored texts, by user.
    """

    config: RunConfig
    data: RunData
    models: Models
    mechanism: Mechanism | None
    texts: AttackTexts

    @functools.cached_property
    def of(self) -> str:
        """Hash of the models and texts that the scores belong to; see ``scores_name``."""
        return scores_name(self.config, self.texts, self.models.target.fingerprint, self.models.reference.fingerprint)
