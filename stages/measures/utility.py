"""The utility stage: losses of target and base model on test texts of held-out users, whom neither was trained on."""

import math
from contextlib import closing
from pathlib import Path

from heldin.attacks.scoring import AttackTexts, scores_of
from heldin.audit.utility import UserLoss
from heldin.base.coins import keyed_order, seed_key
from heldin.base.errors import InputError
from heldin.base.files import cache_directory, text_sha256
from heldin.base.progress import Reporter
from heldin.corpus.split import Part, Role
from heldin.corpus.store import texts_of
from heldin.models.loading import LanguageModel
from heldin.models.score_cache import ScoreCache
from heldin.stages.config import RunConfig
from heldin.stages.measures.losses_file import FILE, losses_of, write_losses
from heldin.stages.sides.data import RunData


def measure_losses(
    config: RunConfig, data: RunData, target: LanguageModel, base: LanguageModel, out: Path, reporter: Reporter
) -> dict[str, UserLoss]:
    """Losses by held-out user, read from ``losses.parquet`` if they are there.

    Args:
        target: the chosen checkpoint.

    Raises:
        InputError: a text has no finite loss.
    """
    texts = utility_texts(config, data)
    of = _name(texts, target.fingerprint, base.fingerprint)
    kept = losses_of(out / FILE, of=of, say=reporter.say)
    if kept is not None:
        return kept
    flat = texts.flat()
    with (
        closing(ScoreCache(cache_directory() / "scores")) as cache,
        reporter.track("utility", 2 * len(flat), "texts") as advance,
    ):
        scored = [scores_of(texts, model, cache, advance=advance) for model in (target, base)]
    tokens = dict.fromkeys(texts.texts, 0)
    sums = {user: [0.0, 0.0] for user in texts.texts}
    for (user, _, _), *its in zip(flat, *scored, strict=True):
        tokens[user] += len(its[0].logprobs)
        sums[user] = [total - score.total for total, score in zip(sums[user], its, strict=True)]
    if not all(math.isfinite(loss) for losses in sums.values() for loss in losses):
        raise InputError(
            "a held-out user's test text has no finite loss: the model is broken; lower finetune.learning_rate and"
            " start a new run folder"
        )
    found = {
        user: UserLoss(user, len(its), *(loss / max(1, tokens[user]) for loss in sums[user]))
        for user, its in texts.texts.items()
    }
    write_losses(found, out / FILE, of=of)
    return found


def kept_losses(config: RunConfig, data: RunData, out: Path, *, target: str, base: str) -> dict[str, UserLoss]:
    """The losses that the utility stage left.

    Args:
        base: fingerprint of the base model.

    Raises:
        InputError: the file is missing or damaged, or its losses are of other models or texts.
    """
    kept = losses_of(out / FILE, of=_name(utility_texts(config, data), target, base))
    if kept is None:
        raise InputError(f"'{out / FILE}' is missing, damaged, or of other models or texts than the record names")
    return kept


def utility_texts(config: RunConfig, data: RunData) -> AttackTexts:
    """By held-out user, a sample of test texts, each cut and scored like the attacker's."""
    users = data.real(data.ledger.users(Role.HELD_OUT))
    key, most = seed_key(config.seed), config.audit.test_texts_per_user
    found = {}
    for user in users:
        # An audited entity writes nothing; who names it writes of others.
        if user in data.ledger.entities:
            continue
        # By id under a public seed, so that every variant of a block is measured on the same texts.
        by_id = {data.store.id(row): row for row in data.ledger.parts[user][Part.TEST]}
        rows = [by_id[id_] for id_ in keyed_order(key, "test texts", list(by_id))[:most]]
        texts = texts_of(data.store, rows)
        if texts:
            found[user] = texts
    return AttackTexts(found, config.attack.max_characters, data.parts)


def _name(texts: AttackTexts, target: str, base: str) -> str:
    cut = {user: [text[: texts.max_characters] for text in its] for user, its in texts.texts.items()}
    parts = () if texts.parts is None else (repr(texts.spans()),)
    return text_sha256(target, base, repr(cut), *parts)
