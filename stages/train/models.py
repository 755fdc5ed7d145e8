"""The models of a run: what it starts from, what it made, and what its target is compared with."""

from pathlib import Path

import torch

from heldin.base.artefacts import is_whole
from heldin.base.errors import InputError
from heldin.base.files import cache_directory
from heldin.base.progress import Reporter
from heldin.finetune.precision import arithmetic_of
from heldin.finetune.pretraining import pretrain, pretrained_folder
from heldin.finetune.ranks import same_as_first
from heldin.models.devices import default_device, spreads
from heldin.models.loading import LanguageModel, load_language_model
from heldin.stages.config import RunConfig
from heldin.stages.sides.corpus import CorpusData

PRETRAINED_HERE = "the base model, pre-trained here"


def base_model(config: RunConfig, corpus: CorpusData, reporter: Reporter) -> tuple[str, LanguageModel]:
    """The name to load the base model by, and the model, pre-trained here if the config says so."""
    if config.model.pretrain is None:
        name = str(config.model.base)
        # A model that is spread over processes may not fit into one of them: its shards are taken from main memory.
        place = torch.device("cpu") if config.finetune.shard else None
        return name, load_language_model(name, device=place, revision=config.model.revision)
    texts = corpus.public_texts()
    recipe = config.model.pretrain.recipe
    folder = pretrained_folder(texts, config.model.pretrain.shape, recipe, cache_directory())
    # A folder with a config is whole: it is renamed into place when training has ended (``train_once``).
    if same_as_first(is_whole(folder, say=reporter.say)):
        reporter.say("base model: already pre-trained on the same public texts")
        return str(folder), load_language_model(str(folder))
    with reporter.track("pre-training", recipe.steps(len(texts)) if texts else 0, "steps") as advance:
        lm = pretrain(texts, config.model.pretrain.shape, recipe, cache_directory(), advance=advance)
    return str(folder), lm


def target_and_reference(config: RunConfig, trained: Path, base_name: str) -> tuple[LanguageModel, LanguageModel]:
    """The fine-tuned model and the leading reference, from disk, in the precision of the attack."""
    named, precision = config.attack.reference, config.attack.precision
    target = load_language_model(str(trained), precision=precision)
    return target, load_language_model(named, precision=precision) if named else scored_base(config, base_name)


def scored_base(config: RunConfig, base_name: str) -> LanguageModel:
    """The base model, from disk, in the precision of the attack."""
    # The revision is that of the base model, and means nothing for another name.
    return load_language_model(base_name, revision=config.model.revision, precision=config.attack.precision)


def require_arithmetic(config: RunConfig) -> None:
    """Check, before anything is read, that the device is there and has the arithmetic that the config asks for.

    Raises InputError if not.
    """
    device = default_device()
    if spreads():
        raise InputError("device 'auto' spreads models that are only scored (heldin audit): name cpu or cuda here")
    recipes = [config.finetune, *([config.model.pretrain.recipe] if config.model.pretrain is not None else [])]
    for recipe in recipes:
        arithmetic_of(recipe.precision, device)
