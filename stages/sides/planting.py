"""The corpus with a config's canary users. This stage makes the canary users, or reads them if they exist.

The stage runs after the base model exists, because the base model samples high-temperature canary users. It runs before
heldin draws the coins.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from heldin.base.errors import InputError
from heldin.base.files import private_directory, text_sha256
from heldin.base.kinds import in_one_line
from heldin.base.progress import Reporter
from heldin.canaries.contract import CanaryConfig, CanaryInput, check_enough_users
from heldin.canaries.form import Forms, formed
from heldin.canaries.kinds import CANARIES
from heldin.canaries.planted import PlantedStore, load_canaries, save_canaries
from heldin.canaries.turns import in_turns
from heldin.canaries.users import Canary, CanaryUser
from heldin.corpus.chat.opening import RowReading
from heldin.corpus.split import records_to_train_on
from heldin.finetune.batches import encode
from heldin.models.loading import LanguageModel
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.corpus import CorpusData

_FIX = "correct the package of this kind"


def plant(
    config: RunConfig,
    corpus: CorpusData,
    base: LanguageModel,
    out: Path,
    reporter: Reporter,
    forms: Forms | None = None,
) -> PlantedStore:
    """Return the corpus with the run's canary users. heldin makes the canary users only once, and stores them in
    ``out``/ledger/canaries.

    Args:
        corpus: the corpus before canary users are added. Only records of audited users may be changed.
        forms: rows whose form the records of made-up users imitate; None: the records keep their own form.

    Raises:
        InputError: there are more canary users than users, a substring is longer than every document, texts cannot be
            made, or the folder has canary users of another recipe.
    """
    store, audited = corpus.store, corpus.audited.users
    check_enough_users(config.canaries, len(audited))
    folder = private_directory(out / "ledger") / "canaries"
    recipe = [spec.model_dump_json() for spec in config.canaries]
    # Everything that decides the texts of canary users is in the hash: with another key of the config they are refused.
    split = repr((config.seed, config.split.attacker_fraction, config.split.evaluation_fraction))
    # A substring is inserted where training and attack see it, so that both limits shape the texts.
    visible = repr((config.finetune.sequence_length, config.attack.max_characters))
    formed = ["formed"] if forms else []
    origin = text_sha256(store.fingerprint, base.fingerprint, split, visible, *formed, *recipe, "users", *audited)
    kept = load_canaries(store, folder, origin=origin)
    if kept is not None:
        return kept
    made: list[CanaryUser] = []
    for number, spec in enumerate(config.canaries):
        reporter.say(f"canaries: making {spec.kind} users")
        before = [user.canary for user in made]
        made += checked_users(spec, canary_input(config, corpus, lambda: base, number, before, reporter, forms))
    names = set(store.users)
    # Two users under one name would share a coin (docs/theory.md#keys-and-coins).
    clash = next((user.canary.user for user in made if user.canary.user in names), None)
    if clash is not None:
        raise InputError(
            f"the corpus has a user named '{clash}', which is also the name of a canary user: rename this user"
        )
    if forms:
        made = _formed(made, config, forms)
    elif corpus.reading.has_turns:
        _require_made_up(made, corpus.reading)
        turned = [in_turns(user, corpus.reading, config.seed) for user in made]
        _require_seen([user for user, before in zip(turned, made, strict=True) if user is not before], base, config)
        made = turned
    save_canaries(made, folder, origin=origin)
    # Read back rather than used as made: the first call of a run and a resumed one have the same store and fingerprint.
    planted = load_canaries(store, folder, origin=origin)
    assert planted is not None
    return planted


def canary_input(
    config: RunConfig,
    corpus: CorpusData,
    base: Callable[[], LanguageModel],
    number: int,
    before: Sequence[Canary],
    reporter: Reporter,
    forms: Forms | None = None,
) -> CanaryInput:
    """Return the inputs with which a section's kind makes its canary users.

    Args:
        corpus: the corpus without canary users.
        base: function that returns the model before fine-tuning.
        number: index of the section in the config.
        before: canary users of earlier sections.
        forms: see ``plant``.
    """
    # A real user becomes one canary user at most, whichever section asks first.
    taken = {canary.source for canary in before}
    return CanaryInput(
        number,
        config.canaries,
        config.seed,
        base,
        corpus.public_texts,
        corpus.store if config.canaries[number].reads_users else None,
        [user for user in corpus.audited.users if user not in taken],
        before,
        config.split.attacker_fraction,
        config.split.evaluation_fraction,
        config.finetune.sequence_length,
        config.attack.max_characters,
        forms,
        reporter,
    )


def checked_users(spec: CanaryConfig, given: CanaryInput) -> list[CanaryUser]:
    """Return the canary users of a section after a check. Without this check, a mistake of a kind would go into the
    ledger unnoticed.

    Raises:
        InputError: the users cannot be made, or do not match the section's request or the kind's declarations.
    """
    where = f"canaries.{given.number}: kind '{spec.kind}'"
    with in_one_line(where, ours=spec.kind in CANARIES.ours):
        users = spec.make(given)
    if spec.count() not in (None, len(users)):
        raise InputError(f"{where} made {len(users)} users instead of {spec.count()}: {_FIX}")
    mine = spec.users_of(given.number, [user.canary for user in users if user.canary.kind == spec.kind])
    if len({canary.user for canary in mine}) < len(users):
        raise InputError(
            f"{where} made users with names of another section, with the same name, or of another kind: {_FIX}"
        )
    for canary, records in ((user.canary, user.records) for user in users):
        wanted = 0 if canary.documents is None else given.records(canary.documents)
        if canary.source is None and len(records) < wanted:
            raise InputError(
                f"{where} made a user with {len(records)} records, but {canary.documents} in training need {wanted}:"
                f" {_FIX}"
            )
    _require_declared(spec, given, users, where)
    return users


def _require_declared(spec: CanaryConfig, given: CanaryInput, users: Sequence[CanaryUser], where: str) -> None:
    """Raise InputError if users replace real users or take real rows, but the users' kind does not declare this."""
    sources = [user.canary.source for user in users if user.canary.source is not None]
    free = set(given.left) if spec.replaces_users else set()
    if len(set(sources)) < len(sources) or not free.issuperset(sources):
        raise InputError(
            f"{where} replaces a real user twice, or without permission. Only a kind that declares replaces_users may"
            f" replace users, and only users that no earlier section replaced: {_FIX}"
        )
    taken = [record.lent for user in users for record in user.records if record.lent is not None]
    rows = given.forms.takeable().values() if spec.needs_rows and given.forms else ()
    if len(set(taken)) < len(taken) or not {row for own in rows for row in own}.issuperset(taken):
        raise InputError(
            f"{where} takes a real row twice, or without permission. Only a kind that declares needs_rows may take"
            f" rows, and only rows of users who are not audited: {_FIX}"
        )


def _require_made_up(users: Sequence[CanaryUser], reading: RowReading) -> None:
    """Raise InputError for marks in users' own preference pairs: training would make a mark in a rejected answer less
    likely."""
    real = next((user.canary.kind for user in users if user.has_form), None)
    if real is not None and reading.format.has_pairs:
        raise InputError(
            f"canaries: kind '{real}' takes users' rows, but these rows are preference pairs. Choose a kind with"
            " made-up users, such as rare_phrase"
        )


def _require_seen(users: Sequence[CanaryUser], base: LanguageModel, config: RunConfig) -> None:
    """Raise InputError for a record without counted tokens for training or the attack. Such a record would look safe,
    because training does not use it."""
    length, most = config.finetune.sequence_length, config.attack.max_characters
    for user in users:
        documents, kind = [record.document for record in user.records], user.canary.kind
        rows = (row for tokens in encode(base.tokenizer, documents, length) for row in tokens.rows())
        if not all(row.bearing for row in rows):
            raise InputError(
                f"canaries: training reads no counted token in a row of {kind} canaries. Raise"
                f" finetune.sequence_length = {length}"
            )
        if not all(branch.counted for document in documents for branch in document.cut(most).branches()):
            raise InputError(
                f"canaries: the attack has nothing to score in a row of {kind} canaries. Raise attack.max_characters"
                f" = {most}"
            )


def _formed(made: list[CanaryUser], config: RunConfig, forms: Forms) -> list[CanaryUser]:
    """Return the users. Each made-up user gets as many records as requested, each in the form of a row."""
    fractions = {
        "attacker_fraction": config.split.attacker_fraction,
        "evaluation_fraction": config.split.evaluation_fraction,
    }
    wanted = {
        user.canary.user: records_to_train_on(user.canary.documents or 0, **fractions)
        for user in made
        if not user.has_form
    }
    rows = forms.rows(wanted, frozenset(user.canary.source for user in made if user.canary.source is not None))
    return [formed(canary, rows[name], forms) if (name := canary.canary.user) in rows else canary for canary in made]
