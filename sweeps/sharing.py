"""Which cells share what, by name; ``jobs.sweep.shared`` makes it, and loads torch, which the driver does without."""

import json

from heldin.stages.config import RunConfig


def shared_work(config: RunConfig) -> str:
    """A name for what a cell of this config finds in the cache: cells of one name share it."""
    model = config.model_dump(mode="json")
    recipe = model["finetune"] if any(reference.kind == "public" for reference in config.attack.references) else None
    parts = [model["seed"], model["corpus"], model["model"], model["attack"]["references"], recipe]
    return json.dumps(parts, sort_keys=True)


def shared_scores(config: RunConfig) -> str:
    """A name for the texts that a cell of this config scores with models that it shares: cells of one name share it."""
    model = config.model_dump(mode="json")
    # What is set aside, planted and cut, and all that chooses among it.
    return json.dumps([model[key] for key in ("split", "canaries", "attack", "audit", "data_defenses")], sort_keys=True)
