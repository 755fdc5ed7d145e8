"""The texts of a run that are scored: what the attacker has of each user, and held-out users' test texts."""

from collections.abc import Sequence

from heldin.attacks.config import Documents
from heldin.attacks.scoring import AttackTexts
from heldin.base.coins import keyed_order, seed_key
from heldin.corpus.split import Part, Role
from heldin.corpus.store import texts_of
from heldin.stages.config import RunConfig
from heldin.stages.sides.data import RunData


def known_texts(config: RunConfig, data: RunData, users: Sequence[str], which: Documents) -> dict[str, list[str]]:
    """Return the texts that the attacker has of each user.

    Args:
        which: fresh texts, or those of training.
    """
    if which == "fresh":
        return data.attacker_texts(users)
    return data.known_training_texts(users, config.attack.training_documents, config.seed)


def texts_under_attack(config: RunConfig, data: RunData, which: Documents | None = None) -> AttackTexts:
    """Return the scored texts of every scored user; None: those that lead in ``attack.documents``."""
    texts = known_texts(config, data, data.ledger.scored_users(), which or config.attack.documents[0])
    return AttackTexts(texts, config.attack.max_characters, data.parts)


def test_texts(config: RunConfig, data: RunData) -> AttackTexts:
    """Return by held-out user a sample of test texts, each cut and scored like the attacker's."""
    key, most = seed_key(config.seed), config.audit.test_texts_per_user
    sample = {}
    for user in data.real(data.ledger.users(Role.HELD_OUT)):
        # An audited entity writes nothing; who names it writes of others.
        if user in data.ledger.entities:
            continue
        # By id under a public seed, so that every variant of a block is measured on the same texts.
        by_id = {data.store.id(row): row for row in data.ledger.parts[user][Part.TEST]}
        rows = [by_id[id_] for id_ in keyed_order(key, "test texts", list(by_id))[:most]]
        if rows:
            sample[user] = texts_of(data.store, rows)
    return AttackTexts(sample, config.attack.max_characters, data.parts)
