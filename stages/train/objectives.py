"""The objective of a run, and documents in the form for training."""

from collections.abc import Sequence

from heldin.base.errors import InputError
from heldin.corpus.chat.conversation import RowFormat
from heldin.corpus.document import Document
from heldin.finetune.batches import Truncation, encode
from heldin.finetune.precision import arithmetic_of
from heldin.finetune.preferences import preference_records
from heldin.finetune.recipe import Recipe
from heldin.models.loading import LanguageModel
from heldin.models.objective import LANGUAGE_MODELLING, Objective
from heldin.models.preference import Preference, preference_objective
from heldin.models.preference_name import BETA, PreferenceName
from heldin.models.tokens import Tokens


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
            f"finetune.{wrong} = {stated[wrong]} needs preference pairs (columns chosen and rejected), but the rows"
            f" are {form}: leave finetune.{wrong} out"
        )
    return LANGUAGE_MODELLING


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
