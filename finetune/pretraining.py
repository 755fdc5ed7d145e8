"""Pre-train a tiny GPT-Neo on public users. The model is the offline base model, and also the attack's reference.

heldin caches the result under a hash of the texts and all options. It uses the usual training loop, so a training can
resume.
"""

import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from heldin.base.artefacts import is_whole
from heldin.base.errors import InputError
from heldin.base.files import keep_in_use, one_process_at_a_time, text_sha256
from heldin.corpus.document import Document, TurnLayout
from heldin.finetune.batches import encode
from heldin.finetune.loop import train
from heldin.finetune.ranks import leads, same_as_first, wait_for_all
from heldin.finetune.recipe import Recipe
from heldin.models.devices import default_device
from heldin.models.loading import LanguageModel
from heldin.models.model_config import TinyModel
from heldin.models.opening import load_language_model
from heldin.models.tiny import new_tiny_model, train_tokenizer
from heldin.models.tokens import Framed, Tokens


def pretrained_folder(
    texts: Sequence[str], shape: TinyModel, recipe: Recipe, cache: Path, chat_template: str | None = None
) -> Path:
    """Return the cache folder of the model for these texts and options.

    Args:
        texts: texts of public users, as in ``pretrain``.
    """
    chats = () if chat_template is None else ("chats", chat_template, repr([isinstance(t, Framed) for t in texts]))
    return cache / "pretrained" / text_sha256("1", repr(shape), repr(recipe), *chats, *texts)[:24]


def pretrain(
    texts: Sequence[str],
    shape: TinyModel,
    recipe: Recipe,
    cache: Path,
    chat_template: str | None = None,
    *,
    advance: Callable[[int], object] | None = None,
) -> LanguageModel:
    """Train tokenizer and model from scratch on ``texts``, or load them from the cache.

    Args:
        texts: texts of public users only. The tokenizer is also trained on these texts. Chats are ``Framed``, and all
            of a text counts.
        recipe: recipe of the training; its sequence length may not exceed the model's context.
        chat_template: template that writes the chats; None: there are no chats.

    Raises:
        InputError: there are no texts, or sequences are longer than the context.
    """
    if not texts:
        raise InputError("there are no public texts to pre-train on: widen model.pretrain.users, or give a model.base")
    if recipe.sequence_length > shape.context:
        raise InputError(
            f"model.pretrain.recipe.sequence_length is {recipe.sequence_length}, more than"
            f" model.pretrain.shape.context = {shape.context}: lower the sequence_length"
        )
    folder = pretrained_folder(texts, shape, recipe, cache, chat_template)
    keep_in_use(folder.parent)
    if not same_as_first(is_whole(folder)):
        tokenizer = train_tokenizer(texts, shape.vocabulary, chat_template)
        model = new_tiny_model(shape, tokenizer, recipe.seed).to(default_device())
        sequences = encode(tokenizer, map(_document, texts), recipe.sequence_length)
        fresh = LanguageModel(model, tokenizer, "tiny GPT-Neo", text_sha256(repr(shape), str(recipe.seed)))
        train_once(fresh, sequences, recipe, folder, advance=advance)
    return load_language_model(str(folder))


def _document(text: str) -> Document:
    return Document(text, ((0, len(text)),), TurnLayout(()) if isinstance(text, Framed) else None)


def train_once(
    fresh: LanguageModel,
    sequences: Sequence[Tokens],
    recipe: Recipe,
    folder: Path,
    *,
    advance: Callable[[int], object] | None = None,
) -> None:
    """Train a model on public texts and write it to ``folder``, unless the folder already has the model.

    If several programs need the same model, one program trains the model, and the other programs wait. Processes of one
    program train the model together.

    Args:
        fresh: the untrained model.
        folder: folder for the trained model. All other files in the folder are removed.
    """
    # Trained beside the folder and then renamed, so that a folder with a config is a finished model.
    work = keep_in_use(folder.parent) / f"{folder.name}.work"
    with one_process_at_a_time(work, wait=True) if leads() else nullcontext():
        # Asked again: the process that held the lock may have trained it. The first process asks for all.
        if not same_as_first(is_whole(folder)):
            if leads() and folder.is_dir():
                shutil.rmtree(folder)  # not as it was written
            trained = train(fresh, sequences, recipe, work, advance=advance).folder
            if leads():
                trained.rename(folder)
        wait_for_all()
        if leads():
            shutil.rmtree(work, ignore_errors=True)
