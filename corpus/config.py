"""The corpus section of a config: where texts come from, their format, and which users are audited."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import Discriminator, Field, Tag, WithJsonSchema, model_validator

from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.base.section import ExpandedName, ExpandedPath, Section
from heldin.corpus.made_up.synthetic import SyntheticCorpus, generate
from heldin.corpus.presets.catalogue import PRESETS, PresetSource, preset_named
from heldin.corpus.presets.published import WORDS, TokenUnit
from heldin.corpus.sources.bad_rows import BadRows, OnBadRows
from heldin.corpus.sources.hub import HuggingFace
from heldin.corpus.sources.mail import Maildir, MailUser
from heldin.corpus.sources.open import Several, format_named
from heldin.corpus.sources.rows import Columns, Source, batched
from heldin.corpus.sources.sentences import Sentences
from heldin.corpus.sources.text_files import TextFormat
from heldin.corpus.user_filter import MIN_RECORDS_TO_SPLIT, UserFilter


@dataclass(frozen=True)
class Synthetic(Source):
    """The built-in corpus of made-up people's mail."""

    spec: SyntheticCorpus = field(default_factory=SyntheticCorpus)

    def fingerprint(self) -> str:
        """Hash of the generator's parameters."""
        return text_sha256("synthetic", repr(self.spec))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield generated records; none is ever bad."""
        rows = ({"user": r.user, "text": r.text, "id": r.id, "date": r.date} for r in generate(self.spec))
        return batched(enumerate(rows, start=1), "synthetic", "row", Columns(id="id", date="date"), bad)


def _how_many(value: object) -> str:
    return "several" if isinstance(value, list | tuple) else "one"


# The tag is told from the value, so that an error is one line and not one per alternative.
OneOrSeveral = Annotated[
    Annotated[ExpandedPath, Tag("one")] | Annotated[tuple[ExpandedPath, ...], Field(min_length=1), Tag("several")],
    Discriminator(_how_many),
]


class FileCorpus(Section):
    """One or more files of records; later files can be appended to a store that was built before."""

    kind: Literal["jsonl", "csv", "parquet", "mbox", "iob"]
    path: OneOrSeveral
    """The file, or a list of files; JSON and CSV also .gz or .zst. $NAME and ${NAME} are environment variables."""
    columns: Columns = Columns()
    """Which column holds what; for mbox and iob, which say it themselves, leave it out."""
    format: TextFormat = TextFormat()
    """How files of kind jsonl and csv are written."""

    def source(self) -> Source:
        """The source that reads it."""
        opened = format_named(self.kind).opened
        paths = [self.path] if isinstance(self.path, Path) else self.path
        sources = [opened(path, self.columns, self.format) for path in paths]
        return sources[0] if len(sources) == 1 else Several(tuple(sources))


class MaildirCorpus(Section):
    """A folder with one file per message, sorted by account (the layout of the Enron tarball)."""

    kind: Literal["maildir"]
    path: ExpandedPath
    """The folder with a folder for each account."""
    user: MailUser = "sender"
    """Who a message's user is: its sender, or the account in whose folder it lies."""
    folders: tuple[str, ...] = ()
    """Mail folders to read (sent, sent_items); none: all."""

    def source(self) -> Source:
        """The source that reads it."""
        return Maildir(self.path, self.user, self.folders)


class HubCorpus(Section):
    """A Hugging Face dataset, by hub name or ``save_to_disk`` folder."""

    kind: Literal["huggingface"]
    name: ExpandedName
    """Hub name, or a folder that save_to_disk wrote."""
    split: str | None = None
    """Split of the dataset (train); null: its only one."""
    revision: str | None = None
    """Branch, tag or commit of a hub name; null: the newest."""
    streaming: bool = False
    """Read row by row instead of downloading everything first."""
    columns: Columns = Columns()
    """Which column holds what."""

    def source(self) -> Source:
        """The source that reads it."""
        return HuggingFace(self.name, self.split, self.revision, self.columns, self.streaming)


class SyntheticCorpusConfig(Section):
    """The built-in corpus."""

    kind: Literal["synthetic"]
    parameters: SyntheticCorpus = SyntheticCorpus()
    """How many users write, and how much they differ."""

    def source(self) -> Source:
        """The source that generates it."""
        return Synthetic(self.parameters)


class PresetCorpus(Section):
    """A local copy of a paper's dataset in its published format, prepared as the paper says (docs/presets.md)."""

    kind: Literal["preset"]
    name: Annotated[str, WithJsonSchema({"type": "string", "enum": list(PRESETS)})]
    """The preset; `heldin corpus presets` says what each does."""
    path: ExpandedPath
    """The file or folder in the published format."""
    tokenizer: ExpandedName | None = None
    """Hub name or folder of the tokenizer whose tokens the preset's thresholds count; null: words between blanks."""

    @model_validator(mode="after")
    def _known(self) -> "PresetCorpus":
        try:
            preset_named(self.name)
        except InputError as error:
            raise ValueError(str(error)) from error
        return self

    def source(self) -> Source:
        """The source that reads it."""
        return PresetSource(preset_named(self.name), self.path, preset_tokens(self.tokenizer))


def preset_tokens(tokenizer: str | None) -> TokenUnit:
    """Return the unit that a preset counts: words between blanks, or tokens of a tokenizer (hub name or folder)."""
    if tokenizer is None:
        return WORDS
    from heldin.models.loading import load_tokenizer  # slow to import, and few configs need it

    encode = load_tokenizer(tokenizer)
    fast = getattr(encode, "backend_tokenizer", None)
    # The name alone does not fix the counts: another version of the tokenizer must give another fingerprint.
    known = text_sha256(fast.to_str() if fast else json.dumps(encode.get_vocab(), sort_keys=True))[:16]
    return TokenUnit(f"{tokenizer} {known}", lambda text: encode(text, add_special_tokens=False)["input_ids"])


CorpusSource = Annotated[
    FileCorpus | MaildirCorpus | HubCorpus | SyntheticCorpusConfig | PresetCorpus,
    Field(discriminator="kind"),
]


class CorpusConfig(Section):
    """Which texts are used, and which of their users are audited; a preset gives the defaults of ``users``."""

    source: CorpusSource
    """Where texts come from, and in which format."""
    aliases: ExpandedPath | None = None
    """YAML file that lists each person's aliases, which then count as one user; null: every name is one user."""
    text_unit: Literal["record", "sentence"] = "record"
    """What a record of the run is: a record of the source, or each of its sentences."""
    bad_rows: OnBadRows = OnBadRows.SKIP_EMPTY
    """Which rows are skipped and counted. skip-empty: rows without text. skip: all rows that cannot be used. strict:
    none. The first other row that cannot be used is an error."""
    public_validation: UserFilter | None = None
    """Users who are neither audited nor trained on; their loss chooses a checkpoint (finetune.select: best_public);
    null: none."""
    users: UserFilter = UserFilter(min_records=20)
    """Which users are audited. Each needs a record for training, attacker, validation and test: at least 4. A preset
    has a ``min_records`` of its own as default."""

    def opened(self) -> Source:
        """The source of the run's records."""
        source = self.source.source()
        return Sentences(source) if self.text_unit == "sentence" else source

    @model_validator(mode="before")
    @classmethod
    def _users_of_the_preset(cls, content: Any) -> Any:
        """Take from the preset what ``users`` leaves out."""
        # Before the fields are checked: afterwards, a default of ``users`` looks like a number that was stated.
        stated = content.get("users", {}) if isinstance(content, dict) else None
        if not isinstance(stated, dict):
            return content
        source = content.get("source")
        name = source.get("name") if isinstance(source, dict) and source.get("kind") == "preset" else None
        # A config that is made in Python holds the section itself, and not its content.
        if isinstance(source, PresetCorpus):
            name = source.name
        if not (isinstance(name, str) and name in PRESETS):
            return content
        return {**content, "users": {"min_records": PRESETS[name].users.min_records, **stated}}

    @property
    def spans(self) -> str | None:
        """Column with the parts of a text that count; None: all of every text does."""
        return self.source.columns.spans if isinstance(self.source, FileCorpus | HubCorpus) else None

    @model_validator(mode="after")
    def _sentences_of_whole_texts(self) -> "CorpusConfig":
        if self.spans is not None and self.text_unit == "sentence":
            raise ValueError("text_unit: sentence cuts whole texts: leave source.columns.spans out, or keep records")
        return self

    @model_validator(mode="after")
    def _enough_to_split(self) -> "CorpusConfig":
        # Here and not in ``UserFilter``, which also serves users who are not split.
        if self.users.min_records < MIN_RECORDS_TO_SPLIT:
            raise ValueError(
                f"users.min_records is {self.users.min_records}: it must be at least {MIN_RECORDS_TO_SPLIT}"
            )
        return self
