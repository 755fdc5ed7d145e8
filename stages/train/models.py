"""The models of a run: its base, its target, and the references."""

from dataclasses import replace
from pathlib import Path

import torch

from heldin.attacks.config import NamedReference, PretrainedReference, PublicReference, Reference
from heldin.base.artefacts import is_whole
from heldin.base.errors import InputError
from heldin.base.files import cache_directory, keep_in_use, text_sha256
from heldin.base.progress import Reporter
from heldin.corpus.store import documents_of
from heldin.corpus.user_filter import select_users
from heldin.finetune.batches import encode
from heldin.finetune.precision import arithmetic_of
from heldin.finetune.pretraining import pretrain, pretrained_folder, train_once
from heldin.finetune.ranks import same_as_first
from heldin.finetune.recipe import Select
from heldin.models.devices import default_device, spreads
from heldin.models.loading import LanguageModel, load_language_model, require_text_alone
from heldin.models.model_names import require_model
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.corpus import CorpusData


def base_model(config: RunConfig, corpus: CorpusData, reporter: Reporter) -> tuple[str, LanguageModel]:
    """Return the name to load the base model by, and the model, pre-trained here if the config says so."""
    if config.model.pretrain is None:
        name = str(config.model.base)
        # A model that is spread over processes may not fit into one of them: its shards are taken from main memory.
        place = torch.device("cpu") if config.finetune.shard else None
        lm = load_language_model(name, device=place, revision=config.model.revision)
        require_text_alone(lm.model.config, name)
        return name, lm
    texts = corpus.public_texts()
    recipe = config.model.pretrain.recipe
    folder = pretrained_folder(texts, config.model.pretrain.shape, recipe, cache_directory())
    keep_in_use(folder.parent)
    # A folder with a config is whole: it is renamed into place when training has ended (``train_once``).
    if same_as_first(is_whole(folder, say=reporter.say)):
        reporter.say("base model: already pre-trained on the same public texts")
        return str(folder), load_language_model(str(folder))
    with reporter.track("pre-training", recipe.steps(len(texts)) if texts else 0, "steps") as advance:
        lm = pretrain(texts, config.model.pretrain.shape, recipe, cache_directory(), advance=advance)
    return str(folder), lm


def target_and_reference(config: RunConfig, trained: Path, base_name: str) -> tuple[LanguageModel, LanguageModel]:
    """Return the fine-tuned model and the leading reference, from disk, in the precision of the attack."""
    named, precision = config.attack.reference, config.attack.precision
    target = load_language_model(str(trained), precision=precision)
    return target, load_language_model(named, precision=precision) if named else scored_base(config, base_name)


def scored_base(config: RunConfig, base_name: str) -> LanguageModel:
    """Return the base model, from disk, in the precision of the attack."""
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


def check_references(config: RunConfig, corpus: CorpusData) -> None:
    """Check before training what would stop the run after it. Raises InputError: no such model, or no public user."""
    if config.attack.reference:
        require_model(config.attack.reference)
    for spec in config.attack.references:
        match spec:
            case NamedReference(name=name):
                require_model(name)
            case PublicReference():
                # Called for its error: a rule that admits nobody is found before training.
                reference_rows(spec, config, corpus)


def reference_model(
    spec: Reference, config: RunConfig, corpus: CorpusData, base_name: str, reporter: Reporter
) -> LanguageModel:
    """Return the model that ``spec`` describes, in the precision of the attack; trained ones are cached.

    Args:
        spec: an item of the config's ``attack.references``.
        corpus: corpus of the run; its audited and validation users are never trained on here.

    Raises:
        InputError: no such model, or no public user.
    """
    if isinstance(spec, NamedReference):
        return load_language_model(spec.name, precision=config.attack.precision)
    folder = train_reference(spec, config, corpus, base_name, reporter)
    return load_language_model(str(folder), precision=config.attack.precision)


def trained_references(config: RunConfig) -> list[PretrainedReference | PublicReference]:
    """Return those of the further references that are trained here."""
    return [spec for spec in config.attack.references if not isinstance(spec, NamedReference)]


def train_reference(
    spec: PretrainedReference | PublicReference,
    config: RunConfig,
    corpus: CorpusData,
    base_name: str,
    reporter: Reporter,
) -> Path:
    """Train a further reference unless the cache has it, and return its folder.

    Args:
        spec: an item of the config's ``attack.references``.
        corpus: corpus of the run; its audited and validation users are never trained on here.

    Raises:
        InputError: no public user.
    """
    match spec:
        case PretrainedReference(seed=seed):
            assert config.model.pretrain is not None  # RunConfig checks it
            recipe, shape = replace(config.model.pretrain.recipe, seed=seed), config.model.pretrain.shape
            texts = corpus.public_texts()
            with reporter.track(f"reference {spec.label}", recipe.steps(len(texts)), "steps") as advance:
                pretrain(texts, shape, recipe, cache_directory(), advance=advance)
            return pretrained_folder(texts, shape, recipe, cache_directory())
        case PublicReference():
            return _on_public_users(spec, config, corpus, base_name, reporter)


def _on_public_users(
    spec: PublicReference, config: RunConfig, corpus: CorpusData, base_name: str, reporter: Reporter
) -> Path:
    rows = reference_rows(spec, config, corpus)
    base = load_language_model(base_name, revision=config.model.revision)
    # The run's own recipe without its defense; there are no validation users to choose a checkpoint by.
    recipe = replace(config.finetune, select=Select.LAST, patience=None, shard=None)
    sequences = encode(base.tokenizer, documents_of(corpus.store, rows), recipe.sequence_length)
    # Everything that its weights depend on; "1" is raised if training itself changes.
    name = text_sha256("1", base.fingerprint, repr(recipe), repr(sequences))[:24]
    folder = cache_directory() / "references" / name
    with reporter.track(f"reference {spec.label}", recipe.steps(len(sequences)), "steps") as advance:
        train_once(base, sequences, recipe, folder, advance=advance)
    return folder


def reference_rows(spec: PublicReference, config: RunConfig, corpus: CorpusData) -> list[int]:
    """Return the rows of users who are neither audited nor validation users."""
    store = corpus.store
    validation = {store.record(row).user for row in corpus.validation_rows}
    taken = frozenset((*corpus.audited.users, *validation))
    users = select_users(store, spec.users, taken=taken, seed=config.seed, purpose="reference").users
    if not users:
        raise InputError("attack.references: 'public' admits no user beside the audited ones: widen its users")
    return [row for user in users for row in list(store.rows(user))[: spec.max_records_per_user]]
