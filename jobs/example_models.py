"""The models of the example: a base that has seen public users only, and one that is fine-tuned from it."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from heldin.base.artefacts import INDEX
from heldin.base.files import cache_directory
from heldin.base.progress import Reporter
from heldin.corpus.document import Document
from heldin.finetune.batches import encode
from heldin.finetune.pretraining import pretrain, pretrained_folder, train_once
from heldin.finetune.recipe import Select
from heldin.stages.run_config import parse_config
from heldin.stages.starting.files import contents


def train_models(folder: Path, public: Sequence[str], training: Sequence[str], reporter: Reporter) -> None:
    """Train ``folder``/base on public users only, and ``folder``/model from it on the held-in users.

    Args:
        public: texts of public users.
        training: texts of held-in users.
    """
    built_in = parse_config(contents("built_in"), "the built-in config")
    assert built_in.model.pretrain is not None
    shape, recipe = built_in.model.pretrain.shape, built_in.model.pretrain.recipe
    with reporter.track("base model", recipe.steps(len(public)), "steps") as advance:
        # On public users only, so that the base model is a fair reference for both sides.
        base = pretrain(public, shape, recipe, cache_directory(), advance=advance)
    shutil.copytree(
        pretrained_folder(public, shape, recipe, cache_directory()),
        folder / "base",
        ignore=shutil.ignore_patterns(INDEX),
    )
    # There are no validation texts to choose a checkpoint by.
    plain = replace(built_in.finetune, select=Select.LAST)
    documents = [Document.of(text) for text in training]
    sequences = encode(base.tokenizer, documents, plain.sequence_length)
    with reporter.track("fine-tuned model", plain.steps(len(sequences)), "steps") as advance:
        train_once(base, sequences, plain, folder / "model", advance=advance)
