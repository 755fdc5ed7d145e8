"""A preset of a paper's dataset as a source of a corpus."""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import WithJsonSchema, model_validator

from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.base.section import ExpandedName, ExpandedPath
from heldin.corpus.presets.catalogue import PRESETS, Preset, PresetSource, preset_named
from heldin.corpus.presets.published import WORDS, PresetTokens
from heldin.corpus.sources.contract import SourceConfig
from heldin.corpus.sources.rows import Source


class PresetCorpus(SourceConfig):
    """A local copy of a paper's dataset in its published format. heldin prepares the dataset as in the paper
    (docs/presets.md).
    """

    kind: Literal["preset"]
    name: Annotated[str, WithJsonSchema({"type": "string", "enum": list(PRESETS)})]
    """Name of the preset; `heldin corpus presets` describes each preset."""
    path: ExpandedPath
    """File or folder of the dataset, in its published format."""
    tokenizer: ExpandedName | None = None
    """Hub name or folder of the tokenizer that counts tokens for the preset's thresholds. null: heldin counts words."""

    @model_validator(mode="after")
    def _known(self) -> "PresetCorpus":
        try:
            preset_named(self.name)
        except InputError as error:
            raise ValueError(str(error)) from error
        return self

    def source(self) -> Source:
        """Return the source that reads the dataset."""
        return PresetSource(preset_named(self.name), self.path, preset_tokens(self.tokenizer))

    def paths(self) -> tuple[Path, ...]:
        """Return the file or folder of the dataset."""
        return (self.path,)

    def may_be_folder(self, path: Path) -> bool:
        """Return whether the path is a folder, or may be one because its name has no ending."""
        return path.suffix == "" or path.is_dir()

    def min_records(self) -> int:
        """Return the preset's minimum number of records."""
        return self.preset().users.min_records

    def preset(self) -> Preset:
        """Return the preset with the section's name."""
        return preset_named(self.name)


def preset_tokens(tokenizer: str | None) -> PresetTokens:
    """Return the unit that a preset counts: words between blanks, or tokens of a tokenizer (hub name or folder)."""
    if tokenizer is None:
        return WORDS
    from heldin.models.loading import load_tokenizer  # slow to import, and few configs need it

    encode = load_tokenizer(tokenizer)
    fast = getattr(encode, "backend_tokenizer", None)
    # The name alone does not fix the counts: another version of the tokenizer must give another fingerprint.
    known = text_sha256(fast.to_str() if fast else json.dumps(encode.get_vocab(), sort_keys=True))[:16]
    return PresetTokens(f"{tokenizer} {known}", lambda text: encode(text, add_special_tokens=False)["input_ids"])
