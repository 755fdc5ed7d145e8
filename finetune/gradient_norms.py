"""Norms of users' gradients at a model, for choosing group sizes and clip norms before training.

The norms are facts about users without noise. Compute them on public users only, or count their cost in epsilon
(docs/theory.md#rules-of-a-private-step).
"""

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heldin.base.coins import keyed_order, seed_key
from heldin.base.errors import InputError
from heldin.base.files import cache_directory
from heldin.base.progress import Reporter
from heldin.corpus.build import build_store
from heldin.corpus.sources.open import open_source
from heldin.corpus.sources.rows import Columns
from heldin.corpus.store import documents_of
from heldin.defenses.accounting.heuristics import median_group_size
from heldin.defenses.gradients.per_unit_gradients import clipped_gradient_sum
from heldin.finetune.batches import encode
from heldin.finetune.passes import cut, whole_units
from heldin.models.loading import LanguageModel, require_text_alone
from heldin.models.model_names import require_model
from heldin.models.opening import load_language_model
from heldin.models.tokens import Tokens

SAMPLED_USERS = 128  # as Charles et al. sample, Appendix F.1
RECORDS_A_PASS = 64


@dataclass(frozen=True)
class PublicUsers:
    """Public users at a base model: the median number of records, and the clip norm L(G) for each group size G."""

    median_records: int
    clip_norm: Callable[[int], float]


def public_users(path: Path, columns: Columns, model: str, sequence_length: int, reporter: Reporter) -> PublicUsers:
    """Read public users' texts and prepare to estimate clip norms.

    Args:
        path: file of public records.
        model: hub name or folder of the base model.
        sequence_length: number of tokens of each record to use.
        reporter: receives, for each group size, the number of measured users.

    Raises:
        InputError: the file or the model cannot be used.
    """
    require_model(model)
    store = build_store(open_source(path, columns), cache_directory())
    for skipped in store.report.skipped.lines("public texts", len(store)):
        reporter.say(skipped)
    lm = load_language_model(model)
    require_text_alone(lm.model.config, model)
    most = min(sequence_length, lm.stated_context or sequence_length)
    users = {user: encode(lm.tokenizer, documents_of(store, store.rows(user)), most) for user in store.users}

    @functools.cache
    def norm(group_size: int) -> float:
        with reporter.track(
            f"gradients at group size {group_size}", min(len(users), SAMPLED_USERS), "users"
        ) as advance:
            return median_user_norm(lm, users, group_size, advance=advance)

    return PublicUsers(median_group_size([len(records) for records in users.values()]), norm)


def median_user_norm(
    lm: LanguageModel,
    users: Mapping[str, Sequence[Tokens]],
    group_size: int,
    *,
    seed: int = 0,
    advance: Callable[[int], object] = lambda _: None,
) -> float:
    """Return L(G): the median user norm of the mean gradient over G random records (Charles et al., eq. (8)).

    Args:
        lm: the pre-trained model.
        users: the tokens of each record, by user. heldin samples at most 128 users, and uses all records of a user with
            fewer than G records.
        seed: public seed of both samples.
        advance: called with the number of measured users after every pass.
    """
    if group_size < 1 or not users:
        raise InputError("gradient norms need at least one user and a group size of at least 1")
    # Public users need no secret, and the same seed makes norms of different G comparable: the same users, and nested
    # records.
    key = seed_key(seed)
    people = []
    for user in keyed_order(key, "norms", list(users))[:SAMPLED_USERS]:
        order = keyed_order(key, f"records of {user}", [str(i) for i in range(len(users[user]))])
        people.append([users[user][int(i)] for i in order[:group_size]])
    return statistics.median(gradient_norms(lm, people, advance))


def gradient_norms(
    lm: LanguageModel, units: Sequence[Sequence[Tokens]], advance: Callable[[int], object] = lambda _: None
) -> list[float]:
    """Return the norm of the gradient of each unit's mean loss, in order. A unit is a list of records."""
    norms: list[float] = []
    for run in cut([len(records) for records in units], RECORDS_A_PASS):
        passed = whole_units([list(units[i]) for i in run])
        norms += clipped_gradient_sum(lm.model, passed, clip_norm=float("inf")).norms.tolist()
        advance(len(run))
    return norms
