"""What the sections of a config share: frozen, no unknown keys, environment variables in paths and names."""

import os
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, with_config

from corpus.markov import MarkovCorpus
from corpus.rows import Columns
from corpus.split import UserFilter
from corpus.synthetic import SyntheticCorpus
from finetune.recipe import Lora, Recipe
from models.shape import TinyModel

# The lower layers know nothing of pydantic; here, before any section names them, their dataclasses learn to refuse
# unknown keys.
for _dataclass in (Columns, UserFilter, SyntheticCorpus, MarkovCorpus, Recipe, Lora, TinyModel):
    with_config(ConfigDict(extra="forbid"))(_dataclass)


class Section(BaseModel):
    """A part of a config."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _expanded(value: object) -> object:
    if not isinstance(value, str):
        return value
    expanded = os.path.expandvars(value)
    if "$" in expanded:
        raise ValueError(f"'{value}' names an environment variable that is not set: export it")
    return expanded


ExpandedPath = Annotated[Path, BeforeValidator(_expanded)]
ExpandedName = Annotated[str, BeforeValidator(_expanded)]
