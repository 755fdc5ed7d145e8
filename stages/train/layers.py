"""The layers that a run trains: the layers in its config, or the layers that the gradients of public users pick."""

from collections.abc import Sequence
from pathlib import Path

from heldin.base.artefacts import read_document, write_document
from heldin.base.files import cache_directory, private_directory, text_sha256
from heldin.base.progress import Reporter
from heldin.base.wording import counted
from heldin.finetune.layer_choice import layer_saliency, most_salient, with_layers
from heldin.finetune.passes import Contribution
from heldin.finetune.ranks import first_process_first, rank
from heldin.finetune.recipe import Recipe
from heldin.models.loading import LanguageModel
from heldin.record.facts import PickedLayers
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.corpus import CorpusData, counting
from heldin.stages.train.objectives import as_trained_on

LAYERS = Path("checkpoints") / "layers.json"  # of a run


def with_picked_layers(
    config: RunConfig, corpus: CorpusData, base: LanguageModel, reporter: Reporter, file: Path | None = None
) -> Recipe:
    """Return the recipe of a run, with the names of the layers if public users pick them.

    Args:
        base: the model before training; unchanged afterwards.
        reporter: receives the choice.
        file: file that stores the choice for later calls with the same model and texts, because another machine could
            pick differently between two nearly equal layers. None: a file in the cache.

    Raises:
        InputError: ``layer_saliency`` or ``objective_of`` raises, or ``file`` is damaged.
    """
    recipe = config.finetune
    if recipe.lora is None or not recipe.lora.picks:
        return recipe
    public, objective = corpus.saliency, (recipe.objective, recipe.beta, recipe.label_smoothing)
    # Of texts and settings, and not of log-probabilities of a reference: a GPU does not repeat their last digits.
    origin = (public.store.fingerprint, repr(public.rows), public.reading.loss, recipe.truncate, repr(objective))
    key = text_sha256("2", base.fingerprint, repr(recipe), *map(str, origin))
    file = file or private_directory(cache_directory() / "layers") / f"{key[:24]}.json"
    with first_process_first():
        if rank() == 0 and not (file.is_file() and read_document(file)["key"] == key):
            users = _records_of_users(config, corpus, base)
            with reporter.track("picking layers", len(users), "public users") as advance:
                saliency = layer_saliency(base, users, recipe, advance, reporter.say)
            layers = most_salient(saliency, recipe.lora.picked_share)
            write_document(file, {"key": key, "layers": list(layers), "saliency": saliency, "users": len(users)})
        kept = read_document(file)
    reporter.say(
        f"adapters: on {counted(len(kept['layers']), 'layer')} of {len(kept['saliency'])}, picked by the gradients of"
        f" {counted(kept['users'], 'public user')}: {', '.join(kept['layers'])}"
    )
    return with_layers(recipe, kept["layers"])


def picked_layers(config: RunConfig, run: Path) -> PickedLayers | None:
    """Return the layers that public users picked in a run folder; None if the config names the layers.

    Raises InputError if the file in the folder is missing or damaged.
    """
    lora = config.finetune.lora
    if lora is None or not lora.picks:
        return None
    kept = read_document(run / LAYERS)
    return PickedLayers(layers=kept["layers"], candidates=len(kept["saliency"]), users=kept["users"])


def _records_of_users(config: RunConfig, corpus: CorpusData, base: LanguageModel) -> Sequence[Contribution]:
    """Return the tokens of each public user's records, in the form for training."""
    public, reading = corpus.saliency, corpus.saliency.reading
    documents = [document for batch in public.documents() for document in batch]
    documents = counting(documents, reading.counting, reading.loss)
    records = as_trained_on(base, documents, config.finetune, reading.format)
    by_user: dict[str, Contribution] = {}
    for row, tokens in zip(public.rows, records, strict=True):
        by_user.setdefault(public.store.record(row).user, []).append(tokens)
    return list(by_user.values())
