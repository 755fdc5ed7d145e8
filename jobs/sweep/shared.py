"""What cells share, made once before any of them: ``python -m heldin.jobs.sweep.shared CONFIG``.

Corpus, base model and reference models lie in the cache; cells that found them missing would make them side by side.
"""

import json
import sys
from pathlib import Path

from heldin.base.errors import InputError
from heldin.base.progress import LineReporter, Reporter
from heldin.jobs.config import RunConfig, load_config
from heldin.jobs.run.corpus import read_corpus
from heldin.jobs.run.models import base_model
from heldin.jobs.run.references import check_references, reference_model


def shared_work(config: RunConfig) -> str:
    """A name for what a cell of this config finds in the cache: cells of one name share it."""
    model = config.model_dump(mode="json")
    recipe = model["finetune"] if any(its.kind == "public" for its in config.attack.references) else None
    parts = [model["seed"], model["corpus"], model["model"], model["attack"]["references"], recipe]
    return json.dumps(parts, sort_keys=True)


def make_shared(config: RunConfig, reporter: Reporter) -> None:
    """Read the corpus, pre-train the base model and train the reference models, unless the cache has them."""
    corpus = read_corpus(config, reporter)
    check_references(config, corpus)
    base_name, _ = base_model(config, corpus, reporter)
    for spec in config.attack.references:
        reference_model(spec, config, corpus, base_name, reporter)


if __name__ == "__main__":
    try:
        make_shared(load_config(Path(sys.argv[1])), LineReporter())
    except InputError as error:
        # The last line is what the sweep shows.
        sys.exit(f"error: {error}")
