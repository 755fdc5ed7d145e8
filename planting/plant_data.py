"""The audited users of a planted training set, its canary users and coins, and the rows for training."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from heldin.base.coins import keyed_order
from heldin.base.errors import InputError
from heldin.base.files import text_digest
from heldin.base.progress import Reporter
from heldin.canaries.form import Forms
from heldin.canaries.planted import PlantedStore
from heldin.canaries.real_rows import takeable_rows
from heldin.canaries.users import public_dice
from heldin.corpus.document import Document
from heldin.corpus.row_parts import Parts
from heldin.corpus.split import Part, Role
from heldin.corpus.user_filter import UserFilter
from heldin.models.loading import LanguageModel
from heldin.planting.plant_config import PlantConfig
from heldin.planting.plant_folder import Manifest
from heldin.planting.records import CORPUS, copied
from heldin.planting.training_set import TrainingSet
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.corpus import CorpusData, read_corpus
from heldin.stages.sides.data import RunData, prepare_data
from heldin.stages.sides.layout import parts_of, pool_of_users

MOST_ROWS = 1000  # real rows of each kind that the control compares
_CONTROL_SHARE = 10  # of all rows, one in so many is left out for the control at most
_PROBE = "two words"


def run_of(config: PlantConfig, out: Path) -> RunConfig:
    """Return the config of a run on the records in a planted folder. Raises InputError if the records are missing."""
    copied(out / "ledger")
    return config.run_config(out / "ledger" / CORPUS)


def planted_data(
    config: PlantConfig, out: Path, reporter: Reporter, base: LanguageModel, source: TrainingSet | None = None
) -> RunData:
    """Draw or read users, set-aside rows, canary users and coins. Training excludes the rows that the coins leave out.

    Args:
        base: the reference model, which makes some of the canary users.
        source: the training set; None if canary users already exist.

    Raises:
        InputError: ``stages.sides.data.prepare_data`` raises.
    """
    run = run_of(config, out)
    corpus = corpus_of(config, run, reporter)
    forms = forms_of(config, run, corpus, source, copied(out / "ledger").late)
    data = prepare_data(run, out, reporter, corpus, base, forms)
    return replace(data, training_rows=rows_to_train_on(config, data))


def forms_of(
    config: PlantConfig, run: RunConfig, corpus: CorpusData, source: TrainingSet | None, late: frozenset[str]
) -> Forms:
    """Return the rows that canary rows imitate or consist of.

    Args:
        run: the config of a run on the copied records.
        corpus: the copied records.
        source: the training set; None if canary users already exist.

    Raises:
        InputError: the template leaves no room for a canary user's text.
    """
    forms = Forms(
        corpus.store,
        lambda replaced: _lending(config, run, corpus, replaced),
        run.seed,
        Document.of if source is None else functools.partial(_made, source),
        0 if source is None else len(source.text.made(_PROBE)) - len(_PROBE),
        lambda: _takeable(config, run, corpus, late),
    )
    if config.canaries and forms.around >= config.attack.max_characters:
        raise InputError(
            f"the template writes {forms.around} characters around the turns of a row, but the attack reads only"
            f" {config.attack.max_characters}: raise attack.max_characters"
        )
    return forms


def _made(source: TrainingSet, text: str) -> Document:
    """Return a made-up text in the form in which a model reads it in a row of the training set.

    Raises InputError if the attack or the training reads no counted token of the text.
    """
    whole = source.text.made(text)
    if not source.in_parts:
        return Document.of(whole)
    try:
        document = source.text.document(source.text.put({}, whole))
    except ValueError as error:
        raise InputError(f"a row of a canary user: {error}. Raise attack.max_characters") from error
    if not source.is_visible(document):
        raise InputError(
            f"the first {source.visible} tokens of a canary user's row have no scored token: raise sequence_length"
        )
    return document


def drawn_data(config: PlantConfig, manifest: Manifest, out: Path, reporter: Reporter, base: LanguageModel) -> RunData:
    """Return the data of a finished planting, for an audit. The coins must match the manifest; the function draws no
    coin.

    Args:
        manifest: manifest that the planting wrote.

    Raises:
        InputError: the ledger is missing or does not match the manifest, or ``stages.sides.data.prepare_data`` raises.
    """
    # Drawn anew under another key, coins would be chosen after the model was there, as often as somebody likes.
    if not (out / "ledger" / "ledger.json").is_file():
        raise InputError(
            f"'{out / 'ledger'}' has no ledger, so members are unknown: restore the ledger from a backup, or plant"
            " again"
        )
    data = planted_data(config, out, reporter, base)
    if data.ledger.commitment() != manifest.ledger:
        raise InputError(f"'{out / 'ledger'}' is not the ledger of the manifest: restore the ledger")
    return data


def rows_to_train_on(config: PlantConfig, data: RunData) -> npt.NDArray[np.int64]:
    """Return the rows to train on: the training part of members, and all rows of unaudited users.

    The result excludes rows of the positive control, and real rows that became canary rows.
    """
    ledger = data.ledger
    always = [user for user in data.store.users if ledger.roles.get(user, Role.ALWAYS_IN) is Role.ALWAYS_IN]
    held_in = ledger.parts.rows_of(Part.TRAIN, ledger.users(Role.HELD_IN))
    whole = [np.arange(rows.start, rows.stop) for rows in map(data.store.rows, always)]
    rows = np.unique(np.concatenate([held_in, *whole]))
    return rows[~np.isin(rows, [*control_rows(config, data), *taken_rows(data)])]


def rows_of_control(config: PlantConfig, rows: int, unseen: int) -> tuple[int, int]:
    """Return, before any coin is drawn, the approximate numbers of trained and other real rows that the control will
    compare.

    Args:
        rows: number of usable real rows.
        unseen: number of rows in the sample of ``unseen``.
    """
    if config.split.canaries_only:
        left_out = unseen or min(config.split.control_rows, rows // _CONTROL_SHARE)
        return min(rows - left_out, MOST_ROWS), left_out
    # Of each audited user, held in with probability 1/2.
    half = int(rows * (config.split.audit_fraction or 1.0)) // 2
    return min(half, MOST_ROWS), unseen or min(half, MOST_ROWS)


def control_rows(config: PlantConfig, data: RunData) -> list[int]:
    """Return the real rows that training omits for the positive control; empty if other rows serve the control.

    Each user with several rows keeps at least one row.
    """
    if not config.split.canaries_only or config.unseen is not None:
        return []
    corpus, taken = data.corpus.store, set(taken_rows(data))
    alone = config.columns.user is None
    left = ([row for row in corpus.rows(user) if row not in taken] for user in corpus.users)
    rows = [row for own in left for row in own[0 if alone else 1 :]]
    number = min(config.split.control_rows, len(corpus) // _CONTROL_SHARE)
    by_id = {corpus.id(row): row for row in rows}
    return [by_id[id_] for id_ in keyed_order(data.ledger.coins_key, "control row", list(by_id))[:number]]


def canary_forms(data: RunData) -> dict[int, int]:
    """Return, for each canary row, the real row with the date and other columns to copy.

    The choice depends on no coin. A canary row that was made from a real row copies that row's columns. A canary user
    who is a changed real user keeps the columns of the original rows.
    """
    if not isinstance(data.store, PlantedStore):
        return {}
    corpus, forms = data.corpus.store, dict(data.store.lent)
    for user, canary in data.canaries.items():
        if canary.source is not None:
            own = {corpus.id(row): row for row in corpus.rows(canary.source)}
            forms |= {row: own[data.store.id(row).removeprefix(f"{user}/")] for row in data.store.rows(user)}
    return forms


def taken_rows(data: RunData) -> list[int]:
    """Return the real rows that became rows of canary users."""
    if not isinstance(data.store, PlantedStore):
        return []
    taken = (user for user in data.canaries if user in data.of_real_rows)
    return [data.store.lent[row] for user in taken for row in data.store.rows(user)]


def spare_of(parts: Mapping[str, Parts]) -> dict[str, Sequence[int]]:
    """Return, for each user, the rows that training never reads."""
    return {
        user: sorted(row for part in Part if part is not Part.TRAIN for row in own[part]) for user, own in parts.items()
    }


def corpus_of(config: PlantConfig, run: RunConfig, reporter: Reporter) -> CorpusData:
    """Return the corpus, without audited users if the plan audits only canary users."""
    if not config.split.canaries_only:
        return read_corpus(run, reporter)
    # Nothing is set aside of anybody, so that one row is enough.
    everybody = run.corpus.model_copy(update={"users": UserFilter(min_records=1)})
    corpus = read_corpus(run.model_copy(update={"corpus": everybody}), reporter)
    return replace(corpus, audited=replace(corpus.audited, users=()))


def _of_everybody(config: PlantConfig, corpus: CorpusData) -> dict[str, Sequence[int]]:
    """Return all rows by user. If only canary users are audited, real rows lend their form and remain in training."""
    if config.columns.user is not None:
        return {user: corpus.store.rows(user) for user in corpus.store.users}
    # Nobody knows whose they are: all of them together, in a public order.
    dice = np.random.default_rng(public_dice(config.seed, "form of a canary user", "").getrandbits(64))
    return {"": dice.permutation(len(corpus.store)).tolist()}


def _takeable(
    config: PlantConfig, run: RunConfig, corpus: CorpusData, late: frozenset[str]
) -> dict[str, Sequence[int]]:
    """Return, for each other user, rows that may become canary rows because they have a scored token within the length
    limit."""
    pool: frozenset[str] = frozenset()
    if not config.split.canaries_only:
        pool = frozenset(pool_of_users(corpus.audited.users, run.split, seed=run.seed).names)
    store = corpus.store
    rows_of: dict[str, Sequence[int]] = {user: store.rows(user) for user in store.users if user not in pool}
    if config.columns.user is None:
        rows_of = {"": range(len(store))}
    different = takeable_rows(store, rows_of)
    return {user: [row for row in rows if text_digest(store.text(row)) not in late] for user, rows in different.items()}


def _lending(
    config: PlantConfig, run: RunConfig, corpus: CorpusData, replaced: frozenset[str]
) -> Mapping[str, Sequence[int]]:
    """Return the rows whose form canary rows copy. Before the ledger exists, the function returns the rows that the
    split will set aside."""
    if config.split.canaries_only:
        return _of_everybody(config, corpus)
    users = tuple(user for user in corpus.audited.users if user not in replaced)
    pool = pool_of_users(users, run.split, seed=run.seed).names
    return spare_of(parts_of(corpus.store, pool, {}, run.split, seed=run.seed))
