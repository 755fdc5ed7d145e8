"""The models of a run: base model, target and references."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from heldin.attacks.references import ReferenceConfig, ReferenceTraining
from heldin.base.artefacts import is_whole
from heldin.base.errors import InputError
from heldin.base.files import cache_directory, keep_in_use, text_sha256
from heldin.base.progress import LineReporter, Reporter
from heldin.corpus.store import documents_of
from heldin.corpus.user_filter import UserFilter, select_users
from heldin.finetune.precision import arithmetic_of
from heldin.finetune.pretraining import pretrain, pretrained_folder, train_once
from heldin.finetune.ranks import same_as_first
from heldin.finetune.recipe import Select
from heldin.models.devices import default_device, spreads
from heldin.models.loading import LanguageModel, require_text_alone
from heldin.models.model_names import require_model
from heldin.models.opening import load_language_model
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.corpus import CorpusData
from heldin.stages.train.layers import with_picked_layers
from heldin.stages.train.objectives import as_trained_on


def base_model(config: RunConfig, corpus: CorpusData, reporter: Reporter) -> tuple[str, LanguageModel]:
    """Return the base model and the name for loading it. Pre-trains the model here if the config requires it."""
    if config.model.pretrain is None:
        name, template = str(config.model.base), corpus.reading.template_source
        # A model that is spread over processes may not fit into one of them: its shards are taken from main memory.
        place = torch.device("cpu") if config.finetune.shard else None
        lm = load_language_model(name, device=place, revision=config.model.revision)
        require_text_alone(lm.model.config, name)
        if template is not None:
            lm.tokenizer.chat_template = template  # saved with the model, as its messages were written by it
        return name, lm
    texts, chats = corpus.public_texts(), corpus.reading.template_source
    recipe, shape = config.model.pretrain.recipe, config.model.pretrain.shape
    folder = pretrained_folder(texts, shape, recipe, cache_directory(), chats)
    keep_in_use(folder.parent)
    # A folder with a config is whole: it is renamed into place when training has ended (``train_once``).
    if same_as_first(is_whole(folder, say=reporter.say)):
        reporter.say("base model: already pre-trained on the same public texts")
        return str(folder), load_language_model(str(folder))
    with reporter.track("pre-training", recipe.steps(len(texts)) if texts else 0, "steps") as advance:
        lm = pretrain(texts, shape, recipe, cache_directory(), chats, advance=advance)
    return str(folder), lm


def target_and_reference(config: RunConfig, trained: Path, base_name: str) -> tuple[LanguageModel, LanguageModel]:
    """Load the fine-tuned model and the primary reference from disk, in the precision of the attack."""
    named, precision = config.attack.reference, config.attack.precision
    target = load_language_model(str(trained), precision=precision)
    return target, load_language_model(named, precision=precision) if named else scored_base(config, base_name)


def scored_base(config: RunConfig, base_name: str) -> LanguageModel:
    """Load the base model from disk, in the precision of the attack."""
    # The revision is that of the base model, and means nothing for another name.
    return load_language_model(base_name, revision=config.model.revision, precision=config.attack.precision)


def require_arithmetic(config: RunConfig) -> None:
    """Check, before any input is read, that the device exists and supports the arithmetic in the config.

    Raises InputError if the device or its arithmetic is missing.
    """
    device = default_device()
    if spreads():
        raise InputError("device 'auto' is only for models that are scored (heldin audit): choose cpu or cuda here")
    recipes = [config.finetune, *([config.model.pretrain.recipe] if config.model.pretrain is not None else [])]
    for recipe in recipes:
        arithmetic_of(recipe.precision, device)


def check_references(config: RunConfig, corpus: CorpusData) -> None:
    """Check all references before training, so no reference stops the run later. Raises InputError if a model or public
    users are missing."""
    for name in named_references(config):
        require_model(name)
    for spec in config.attack.references:
        # Called for its error: a rule that admits nobody is found before training.
        reference_rows(spec, config, corpus)


def named_references(config: RunConfig) -> list[str]:
    """Return the names of all references that are existing models, the primary reference first."""
    named = [config.attack.reference, *(spec.model_name for spec in config.attack.references)]
    return list(dict.fromkeys(name for name in named if name))


def reference_model(
    spec: ReferenceConfig, config: RunConfig, corpus: CorpusData, base_name: str, reporter: Reporter
) -> LanguageModel:
    """Return the model that ``spec`` describes, in the precision of the attack. Trained models are cached.

    Args:
        spec: an item of the config's ``attack.references``.
        corpus: corpus of the run; this training never uses its audited and validation users.

    Raises:
        InputError: the model does not exist, or there is no public user.
    """
    name = spec.made_by(_RunTraining(config, corpus, base_name, reporter))
    return load_language_model(name, precision=config.attack.precision)


def train_references(config: RunConfig, corpus: CorpusData, base_name: str, reporter: Reporter) -> None:
    """Train the further references that the run must train itself, unless they are in the cache."""
    for spec in trained_references(config):
        spec.made_by(_RunTraining(config, corpus, base_name, reporter))


def trained_references(config: RunConfig) -> list[ReferenceConfig]:
    """Return the further references that the run must train itself."""
    return [spec for spec in config.attack.references if spec.model_name is None]


def reference_rows(spec: ReferenceConfig, config: RunConfig, corpus: CorpusData) -> list[int]:
    """Return the corpus rows for fine-tuning a reference. Raises InputError if its rule selects no user."""
    return spec.rows(_RunTraining(config, corpus, "", LineReporter(lambda _: None)))


@dataclass(frozen=True)
class _RunTraining(ReferenceTraining):
    """Trains reference models in the same way as the run's own model."""

    config: RunConfig
    corpus: CorpusData
    base_name: str
    reporter: Reporter

    def pretrain(self, seed: int, label: str) -> Path:
        pretraining = self.config.model.pretrain
        assert pretraining is not None  # RunConfig checks it
        recipe, texts = replace(pretraining.recipe, seed=seed), self.corpus.public_texts()
        chats = self.corpus.reading.template_source
        with self.reporter.track(f"reference {label}", recipe.steps(len(texts)), "steps") as advance:
            pretrain(texts, pretraining.shape, recipe, cache_directory(), chats, advance=advance)
        return pretrained_folder(texts, pretraining.shape, recipe, cache_directory(), chats)

    def finetune(self, users: UserFilter, most: int | None, label: str) -> Path:
        rows = self.public_rows(users, most)
        base = load_language_model(self.base_name, revision=self.config.model.revision)
        # The run's own recipe without its defense; there are no validation users to choose a checkpoint by.
        recipe = with_picked_layers(self.config, self.corpus, base, self.reporter)
        recipe = replace(recipe, select=Select.LAST, patience=None, shard=None)
        documents = self.corpus.bearing_loss(documents_of(self.corpus.store, rows))
        sequences = as_trained_on(base, documents, recipe, self.corpus.reading.format)
        # Everything that its weights depend on; "1" is raised if training itself changes.
        name = text_sha256("1", base.fingerprint, repr(recipe), repr(sequences))[:24]
        folder = cache_directory() / "references" / name
        with self.reporter.track(f"reference {label}", recipe.steps(len(sequences)), "steps") as advance:
            train_once(base, sequences, recipe, folder, advance=advance)
        return folder

    def public_rows(self, users: UserFilter, most: int | None) -> list[int]:
        store = self.corpus.store
        validation = {store.record(row).user for row in self.corpus.validation_rows}
        taken = frozenset((*self.corpus.audited.users, *validation))
        admitted = select_users(store, users, taken=taken, seed=self.config.seed, purpose="reference").users
        if not admitted:
            raise InputError(
                "attack.references: 'public' selects no unaudited user. Select more users for this reference"
            )
        return [row for user in admitted for row in list(store.rows(user))[:most]]
