"""Whether canary users' records have outlying gradients that clipping would reach (Kandpal et al. 2024, Figure 12)."""

from collections.abc import Sequence

import numpy as np

from heldin.audit.coarse import significant
from heldin.base.coins import keyed_order, seed_key
from heldin.corpus.entities.spans import Text
from heldin.corpus.split import Part
from heldin.defenses.texts.data_side import as_trained
from heldin.finetune.batches import encode
from heldin.finetune.gradient_norms import gradient_norms
from heldin.models.loading import LanguageModel
from heldin.record.facts import GradientNorms
from heldin.stages.config import RunConfig
from heldin.stages.sides.data import RunData

RECORDS = 256  # of each group
BINS = 24


def canary_gradient_norms(config: RunConfig, data: RunData, base: LanguageModel) -> GradientNorms | None:
    """Gradient norms of training records of canary and real users at the base model; None without canary users.

    The norms are those of all users whose membership chance decides, held in or not.
    """
    if not data.canaries:
        return None
    users = data.ledger.scored_users()  # of both sides: a norm depends on the record, not on who was trained on
    planted = [user for user in users if user in data.canaries]
    groups = [_sequences(config, data, base, group) for group in (planted, data.real(users))]
    # Each record is a unit of its own here: [[s] for s in its].
    of_canaries, of_real = (np.array(gradient_norms(base, [[s] for s in sequences])) for sequences in groups)
    together = np.concatenate([of_canaries, of_real])
    # a tenth beyond either end, and short: the outer edges are no record's own norm
    edges = np.geomspace(significant(0.9 * together.min()), significant(1.1 * together.max()), BINS + 1)
    return GradientNorms(
        edges=edges.tolist(),
        canaries=np.histogram(of_canaries, edges)[0].tolist(),
        real=np.histogram(of_real, edges)[0].tolist(),
    )


def _sequences(config: RunConfig, data: RunData, base: LanguageModel, users: Sequence[str]) -> list[list[int]]:
    by_id = {data.store.id(row): row for user in users for row in data.ledger.parts[user][Part.TRAIN]}
    chosen = keyed_order(seed_key(config.seed), "gradient norms", list(by_id))[:RECORDS]
    # As training would see them, also those of users who are held out.
    texts = as_trained(config.data_defenses, [Text(id_, data.store.text(by_id[id_])) for id_ in chosen])
    return encode(base.tokenizer, texts, config.finetune.sequence_length)
