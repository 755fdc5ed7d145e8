"""The records of a training, as tokens: texts, or preference pairs with the base model's log-probabilities."""

from collections.abc import Sequence
from pathlib import Path

from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.base.progress import Reporter
from heldin.base.wording import counted
from heldin.corpus.chat.conversation import RowFormat
from heldin.corpus.document import Document
from heldin.finetune.batches import Truncation, encode, encoded
from heldin.finetune.precision import arithmetic_of
from heldin.finetune.preferences import preference_records
from heldin.finetune.ranks import first_process_first, rank
from heldin.finetune.recipe import Recipe, Truncate
from heldin.finetune.token_store import Cut, TokenStore, token_store
from heldin.models.loading import LanguageModel
from heldin.models.objective import LANGUAGE_MODELLING, Objective
from heldin.models.preference import Preference, preference_objective
from heldin.models.preference_name import BETA, PreferenceName
from heldin.models.tokens import Tokens
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.data import RunData, rows_digest

TOKENS = Path("checkpoints") / "tokens"  # of a run: what its checkpoints go on from
REFERENCE = Path("checkpoints") / "reference"  # of a run on preference pairs


def preference_of(recipe: Recipe) -> Preference:
    """Return the objective of preference pairs. Raises InputError for a key that the objective does not have."""
    return preference_objective(recipe.objective or PreferenceName.DPO, recipe.beta or BETA, recipe.label_smoothing)


def objective_of(recipe: Recipe, form: RowFormat) -> Objective:
    """Return the objective of a training on rows of this form.

    Raises InputError for an objective of preference pairs if the rows are not pairs.
    """
    if form.has_pairs:
        return preference_of(recipe)
    stated = {"objective": recipe.objective, "beta": recipe.beta, "label_smoothing": recipe.label_smoothing or None}
    if wrong := next((key for key, value in stated.items() if value is not None), None):
        raise InputError(
            f"finetune.{wrong} is {stated[wrong]}, which needs preference pairs (columns chosen and rejected), but"
            f" the rows are {form}: leave it out"
        )
    return LANGUAGE_MODELLING


def training_records(
    config: RunConfig, data: RunData, base: LanguageModel, length: int | None, out: Path, reporter: Reporter
) -> Sequence[Tokens]:
    """Return the records to train on; for preference pairs, with the base model's log-probabilities of the answers.

    Args:
        base: the model before training.
        length: see ``training_tokens``.
        out: the run folder.

    Raises:
        InputError: ``training_tokens`` or ``objective_of`` raises.
    """
    recipe, form = config.finetune, data.corpus.reading.format
    objective = objective_of(recipe, form)
    if objective.rows > 1 and length is None:
        raise InputError(
            "record_selection random_chunk trains on parts of texts, but the rows are preference pairs, which stay"
            " whole: choose another record_selection"
        )
    tokens = training_tokens(data, base, length, recipe.truncate, out / TOKENS, reporter)
    if not isinstance(objective, Preference):
        return tokens
    smoothed = f", label smoothing {objective.label_smoothing:g}" if objective.label_smoothing else ""
    compared = ", reference: the base model" if objective.needs_reference else ""
    reporter.say(f"objective: {objective.name}, beta {objective.beta:g}{smoothed}{compared}")
    with reporter.track("reference of the pairs", len(tokens), "pairs") as advance:
        return preference_records(
            base,
            tokens,
            objective,
            arithmetic_of(recipe.precision, base.device),
            out / REFERENCE,
            alone=recipe.shard is None,
            advance=advance,
        )


def as_trained_on(
    base: LanguageModel, documents: Sequence[Document], recipe: Recipe, form: RowFormat
) -> Sequence[Tokens]:
    """Return documents as records for a training by this recipe, in memory. Raises InputError: see ``objective_of``."""
    truncation = Truncation(recipe.truncate)
    tokens = encode(base.tokenizer, documents, recipe.sequence_length, truncation=truncation)
    objective = objective_of(recipe, form)
    if not isinstance(objective, Preference):
        return tokens
    return list(preference_records(base, tokens, objective, arithmetic_of(recipe.precision, base.device)))


def training_tokens(
    data: RunData, base: LanguageModel, length: int | None, rule: Truncate, folder: Path, reporter: Reporter
) -> TokenStore:
    """Return the tokens of the training rows, on disk: written once, and read by all processes.

    Args:
        base: model whose tokenizer is used.
        length: maximum number of tokens of a record for training; None: all.
        rule: rule for cutting longer records.
        folder: folder for the tokens; owner-only, because it shows who was trained on.

    Raises:
        InputError: no record has a token with loss, or ``encode`` or ``token_store`` raises.
    """
    if not data.training_rows.size:
        raise InputError(
            "the held-in users have no record left to train on after set-asides, caps and data defenses: loosen one"
            " of these, or add records"
        )
    changed = sorted(data.changed.items())
    rows = rows_digest(data.training_rows)
    reading, truncation = data.corpus.reading, Truncation(rule)
    turns = (reading.loss, rule) if reading.has_turns else ()
    origin = text_sha256(base.fingerprint, data.store.fingerprint, rows, repr(changed), repr(length), *turns)
    # Made by the first process, and mapped by the others.
    with first_process_first(), reporter.track("tokenizing", data.training_rows.size, "records") as advance:
        tokens = token_store(
            folder,
            encoded(base.tokenizer, data.training_documents(), length, truncation),
            origin=origin,
            vocabulary=base.model.get_input_embeddings().num_embeddings,
            verify=rank() == 0,
            advance=advance,
            cut=lambda: Cut(truncation.records, truncation.dropped, truncation.counted),
        )
    _say_cut(tokens, reporter)
    return tokens


def _say_cut(tokens: TokenStore, reporter: Reporter) -> None:
    silent = int((tokens.bearing == 0).sum())
    if tokens.cut.records and rank() == 0:
        reporter.say(
            f"tokens: {counted(tokens.cut.records, 'record')} longer than finetune.sequence_length lose"
            f" {tokens.cut.dropped:,} tokens, {tokens.cut.counted:,} of which would have borne loss"
        )
    if silent == len(tokens):
        raise InputError(
            "no record has a token that bears loss within finetune.sequence_length: raise finetune.sequence_length,"
            " or change finetune.loss_on"
        )
