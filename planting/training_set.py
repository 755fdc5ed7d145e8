"""A training set in the form that somebody else's trainer reads. heldin writes a new set in the same form."""

import csv
import difflib
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase

from heldin.base.errors import InputError
from heldin.base.files import text_digest
from heldin.canaries.made_up import mail_with
from heldin.canaries.users import public_dice
from heldin.corpus.chat.columns import with_parts
from heldin.corpus.chat.conversation import format_of_value
from heldin.corpus.chat.template import ChatTemplate
from heldin.corpus.document import Counting, Document
from heldin.corpus.forms import Chat, Completion, Form, Plain, Row, like_messages
from heldin.corpus.sorting import ROWS_PER_BATCH, make_table, sorting_database, take_in
from heldin.corpus.sources.bad_rows import BadRows, OnBadRows
from heldin.corpus.sources.csv_rows import CsvHeader, csv_header
from heldin.corpus.sources.hub import HuggingFace
from heldin.corpus.sources.json_rows import is_lines
from heldin.corpus.sources.open import is_table, rows_of_file
from heldin.corpus.sources.rows import (
    BATCH_ROWS,
    Columns,
    Record,
    kind_of,
    require_columns,
    usable_record,
)
from heldin.corpus.sources.text_files import TextFormat, first_line, is_unicode
from heldin.models.tokens import tokens_of
from heldin.planting.plant_config import PlantColumns, PlantConfig, is_dataset
from heldin.record.planted_files import splits_of
from heldin.words.rows import RowFault

_LINES = pa.schema([("line", pa.large_string())])
_PLACE = pa.field("heldin place", pa.large_binary())
_PACKED = {".gz": "gzip", ".zst": "zstd"}
_FIRST = 1000  # rows that are asked whether they share a system message
_TO_NAME = "name your columns under 'columns'"
ENDS = 2  # tokens that a trainer may put around a row: start and end
_SHORT_MAIL = 150  # characters: about the shortest of the made-up mails
_LEAST_BITS = 32  # of a column that takes new numbers for users or rows
_AS_IT_IS = json.JSONEncoder(ensure_ascii=False)


@dataclass(frozen=True)
class TrainingSet:
    """A file of JSON lines, CSV or Parquet, or a folder of ``save_to_disk``.

    Attributes:
        text: form in which rows contain their text.
        split: split to train on, if the folder has several splits.
        copied_splits: other splits, which heldin copies unchanged.
        in_parts: whether texts have parts (``PlantConfig.in_parts``). A row without a scored part is unusable.
        unparted: numbers of rows without a scored part, from an earlier pass; None: each pass checks again.
        visible: number of tokens of a row that training reads, including start and end token.
        tokenizer: tokenizer of the reference model; None if no row will be read.
        form: format of a JSON or CSV file.
    """

    path: Path
    columns: PlantColumns
    text: Form
    split: str | None = None
    copied_splits: tuple[str, ...] = ()
    in_parts: bool = False
    unparted: frozenset[int] | None = None
    visible: int = 0
    tokenizer: PreTrainedTokenizerBase | None = None
    form: TextFormat = field(default_factory=TextFormat)

    @property
    def schema(self) -> pa.Schema | None:
        """Return the columns, except those to drop; None for JSON lines, because each row has its own columns.

        Raises InputError for a damaged file, or for a column to drop that does not exist.
        """
        schema = self._whole_schema
        if schema is None:
            return None
        if absent := [name for name in self.columns.drop if name not in schema.names]:
            raise InputError(
                f"'{self.path}' has no column '{absent[0]}', although columns.drop lists this column: remove"
                f" '{absent[0]}' from columns.drop"
            )
        for name in self.columns.drop:
            schema = schema.remove(schema.get_field_index(name))
        return schema

    @property
    def _whole_schema(self) -> pa.Schema | None:
        if is_dataset(self.path):
            return self._dataset().features.arrow_schema
        if is_table(self.path):
            return pa.schema([(name, pa.large_string()) for name in self._header.names])
        if self.path.suffix != ".parquet":
            return None
        try:
            return pq.read_schema(self.path)
        except pa.ArrowException as error:
            raise InputError(
                f"{self.path.name}: not a readable Parquet file ({first_line(error)}): fetch or write the file again"
            ) from error

    @property
    def _header(self) -> CsvHeader:
        return csv_header(self.path, self.form, self._wanted)

    @property
    def _wanted(self) -> list[str]:
        beside = [] if self.columns.rejected is None else [self.columns.rejected]
        return [*self.columns.others().values(), *self.columns.text_columns, *beside]

    def check(self) -> None:
        """Raise InputError if a column cannot be sorted, or a split to copy is missing."""
        if is_dataset(self.path) and self.copied_splits:
            missing = set(self.copied_splits) - {*self.splits()}
            if missing or self.split in self.copied_splits:
                name = min(missing, default=self.split)
                raise InputError(f"copied_splits: '{name}' is not another split of '{self.path}'. Remove this name")
        schema = self.schema or _LINES
        self._check_names(schema)
        names = [_PLACE.name, *(name.casefold() for name in schema.names)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"'{self.path}' has several columns '{twice}' if case is ignored: rename one")
        for column in schema:
            if not column.name:
                raise InputError(f"'{self.path}' has a column without a name: name the column")
            if isinstance(column.type, pa.BaseExtensionType) or "time64[ns]" in str(column.type):
                raise InputError(
                    f"'{self.path}': column '{column.name}' of type {column.type} cannot be written. Leave this"
                    " column out, or write it as text or numbers"
                )
        if schema is _LINES:
            return
        with duckdb.connect() as database:  # one for all columns: opening it takes most of the time
            for column in schema:
                try:
                    make_table(database, pa.schema([column]))
                    database.execute("INSERT INTO records VALUES (NULL)")
                    database.sql("SELECT * FROM records").to_arrow_table().cast(pa.schema([column.with_nullable(True)]))
                except (duckdb.Error, pa.ArrowException) as error:
                    raise InputError(
                        f"'{self.path}': column '{column.name}' of type {column.type} cannot be sorted. Leave this"
                        " column out, or write it as text or numbers"
                    ) from error

    def _check_names(self, schema: pa.Schema) -> None:
        """Raise InputError if a column of users or ids cannot hold new names, or if another column repeats the old
        names."""
        known = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        for name in (self.columns.user, self.columns.id):
            if name is None or name not in schema.names:
                continue
            type_ = schema.field(name).type
            if (known.get(name) or {}).get("_type") == "ClassLabel":
                raise InputError(
                    f"'{self.path}': column '{name}' is a ClassLabel, so the rows contain numbers instead of names."
                    " Write the column as text"
                )
            if pa.types.is_integer(type_) and type_.bit_width < _LEAST_BITS:
                raise InputError(
                    f"'{self.path}': column '{name}' of type {type_} is too small for new numbers. Use int64"
                )

    def splits(self) -> tuple[str, ...]:
        """Return the names of the splits, if the training set is a folder with several splits; else empty."""
        return splits_of(self.path)

    def first_row(self) -> Row:
        """Return the first row, which shows the form of all rows; empty if the set has no row."""
        return next((row for _, row in self._numbered(BadRows(OnBadRows.SKIP)) if isinstance(row, dict)), {})

    def rows(
        self, bad: BadRows, unparted: list[int] | None = None, late: set[str] | None = None
    ) -> Iterator[tuple[Record, Row]]:
        """Yield the record (user, text, id, date) and all columns of every usable row, in order.

        If only parts of texts count, the record also has the parts. The record has no parts if ``unparted`` is known,
        because an earlier pass stored the parts.

        Args:
            bad: counts unusable rows.
            unparted: receives the numbers of rows without a scored part.
            late: receives the digests of texts whose first scored token is beyond the tokens that training reads.

        Raises:
            InputError: a bad row must not be skipped, or a row lacks a column that the first row has.
        """
        label = " and ".join(self.text.columns)
        roles = {**self.columns.others(), "text": label}
        nobody = self.columns.user is None
        place = f"{self.path.name} {'row' if self._typed else 'line'}"
        checked = False
        for number, row in self._numbered(bad):
            where = f"{place} {number}"
            if not isinstance(row, dict):
                bad.report(where, RowFault.NOT_AN_OBJECT(kind=kind_of(row)))
                continue
            if not checked:
                require_named(self.columns, row, where)
                checked = True
            try:
                text, document = self.text.of(row), self._document(row, number, unparted, late)
            except ValueError as error:
                bad.report(where, RowFault.OTHER_FORM(reason=str(error)))
                continue
            record, wrong = usable_record({**row, label: text}, roles, untyped=is_table(self.path))
            if document is not None:
                record = with_parts(record, document)
            if nobody:
                record["user"] = f"row {number:09d}"
            if wrong:
                bad.report(where, wrong, user=record.get("user"))
            else:
                yield record, {name: value for name, value in row.items() if name not in self.columns.drop}

    def _document(self, row: Row, number: int, unparted: list[int] | None, late: set[str] | None) -> Document | None:
        """Return the text with its parts; None if texts have no parts, or an earlier pass stored the parts.

        Raises ValueError for a row without a scored part, and adds its number to ``unparted``. Adds late texts to
        ``late``.
        """
        if not self.in_parts or (self.unparted is not None and number not in self.unparted):
            # A chat template is rendered several times for the answer: a millisecond for each turn.
            return None
        try:
            document = self.text.document(row)
        except ValueError:
            if unparted is not None:
                unparted.append(number)
            raise
        if late is not None and not self.is_visible(document):
            late.add(text_digest(document.text))
        return document

    def is_visible(self, document: Document) -> bool:
        """Return whether training reads a scored token of a document."""
        if document.is_plain:
            return True
        assert self.tokenizer is not None
        (tokens,) = tokens_of(self.tokenizer, [document])
        seen = max(0, self.visible - ENDS)
        return bool(len(tokens.ids[:seen]) if tokens.counted is None else tokens.counted[:seen].any())

    def write(self, rows: Iterable[tuple[bytes, Row]], folder: Path, scratch: Path) -> Path:
        """Write rows in the order of their keys, in the form of this set and under its file name.

        Args:
            rows: key and columns of each row, in any order.
            folder: existing folder to write to.
            scratch: temporary folder for sorting; this method creates it, and removes it at the end.

        Returns:
            The path of the written file or folder.

        Raises:
            InputError: a row does not match the columns.
        """
        own, to = self.schema, folder / self.path.name
        schema = own or _LINES
        with sorting_database(scratch) as database:
            keyed = pa.schema([_PLACE, *schema])
            make_table(database, keyed)
            take_in(database, _batches(rows, schema), keyed)
            ordered = database.sql(f'SELECT * EXCLUDE ("{_PLACE.name}") FROM records ORDER BY "{_PLACE.name}"')
            batches = ordered.to_arrow_reader(ROWS_PER_BATCH)
            if own is None:
                _write_json(batches, self.form, to, lines=is_lines(self.path, self.form))
            elif is_table(self.path):
                _write_csv(batches, self._header, self.form, own.names, to)
            elif not is_dataset(self.path):
                _write_parquet(batches, own, to)
            else:
                _write_parquet(batches, own, scratch / "rows.parquet")
                self._save_dataset(scratch / "rows.parquet", to, scratch)
        return to

    @property
    def _typed(self) -> bool:
        return is_dataset(self.path) or self.path.suffix == ".parquet"

    def _numbered(self, bad: BadRows) -> Iterator[tuple[int, Any]]:
        if not is_dataset(self.path):
            schema = self.schema
            names = schema.names if schema and self.path.suffix == ".parquet" else self._wanted
            yield from rows_of_file(self.path, names, bad, self.form)
            return
        tables = self._dataset().with_format("arrow").iter(BATCH_ROWS)
        yield from enumerate((row for table in tables for row in table.to_pylist()), start=1)

    def _dataset(self) -> Any:
        return HuggingFace(str(self.path), self.split).load()

    def _save_dataset(self, rows: Path, to: Path, scratch: Path) -> None:
        import datasets

        datasets.disable_progress_bars()  # heldin shows its own
        features = {name: kind for name, kind in self._dataset().features.items() if name not in self.columns.drop}
        written = datasets.Dataset.from_parquet(
            str(rows), features=datasets.Features(features), cache_dir=str(scratch / "cache"), keep_in_memory=False
        )
        if self.splits():
            others = {name: HuggingFace(str(self.path), name).load() for name in self.copied_splits}
            written = datasets.DatasetDict({str(self.split): written, **others})
        written.save_to_disk(str(to))


def training_set(config: PlantConfig, tokenizer: PreTrainedTokenizerBase) -> TrainingSet:
    """Return the training set of a config, together with the form of its rows.

    Args:
        tokenizer: tokenizer of the reference model; its chat template writes the messages.

    Raises:
        InputError: the set cannot be read, or its messages cannot be written as text.
    """
    training = TrainingSet(
        config.training,
        config.columns,
        Plain(config.columns.text),
        config.dataset_split,
        config.copied_splits,
        config.in_parts,
        visible=config.sequence_length,
        tokenizer=tokenizer,
        form=config.format,
    )
    training.check()
    training = replace(training, text=form_of_rows(config, training.first_row(), tokenizer))
    if isinstance(training.text, Chat):
        # For a system message alone the parts of texts need not be found.
        rows = replace(training, unparted=frozenset()).rows(BadRows(OnBadRows.SKIP))
        first = [row for _, row in itertools.islice(rows, _FIRST)]
        training = replace(training, text=training.text.with_system(first))
    if config.score != "all" and isinstance(training.text, Chat | Completion):
        training = replace(training, text=training.text.within(config.sequence_length - ENDS, tokenizer))
    return training


def form_of_rows(config: PlantConfig, row: Row, tokenizer: PreTrainedTokenizerBase) -> Form:
    """Return the form in which the rows of a training set contain their text.

    Args:
        config: config with the names of the columns, and the scored part.
        row: the first row, which shows whether a prompt is text or messages.
        tokenizer: tokenizer whose chat template writes messages.

    Raises:
        InputError: there are messages, but the tokenizer has no chat template.
    """
    columns, most = config.columns, config.attack.max_characters
    if not config.in_parts:
        return Plain(columns.text)
    if columns.prompt is not None and columns.completion is not None:
        texts = (row.get(column) for column in (columns.prompt, columns.completion))
        if not any(format_of_value(value) for value in texts):
            return Completion(columns.prompt, columns.completion, config.score == "completion", most)
    template = ChatTemplate.of(
        tokenizer, config.reference, file=config.template, options=dict(config.template_options or {})
    )
    counted = {"all": Counting.ALL, "completion": Counting.COMPLETION}.get(config.score, config.role)
    return Chat(columns.text_columns, template, counted=counted, most=most)


REJECTED = "rejected"  # TRL's name of the column


def with_made_up_rejected(row: Row, columns: PlantColumns, record: str, seed: int) -> Row:
    """Return a canary user's row with a made-up rejected text, as long as the rejected text of the row that lends its
    form.

    heldin cannot use the lending row's rejected text: the row is set aside, and may belong to a non-member.

    Args:
        row: canary user's row, with the other columns of the lending row.
        columns: column names, possibly with ``rejected``.
        record: id of the canary user's record.
        seed: public seed.
    """
    if columns.rejected is None:
        return row
    old = row.get(columns.rejected)
    dice, length = public_dice(seed, "rejected text", record), max(2, len(str(old or "")))
    text = " ".join(mail for mail, _ in mail_with(lambda _: "", 1 + length // _SHORT_MAIL, dice))[:length]
    made = text if format_of_value(old) is None else like_messages([{"role": "assistant", "content": text}], old)
    return {**row, columns.rejected: made}


def require_named(columns: PlantColumns, row: Row, where: str) -> None:
    """Raise InputError if a row lacks columns that the config names. ``where`` is the row's file and line."""
    user = columns.user
    advice = _TO_NAME
    # A column that is named almost so is the one that is meant.
    if user is not None and user not in row and not difflib.get_close_matches(user, row, n=1):
        advice += (
            ". If rows have no users, set columns.user to null and split.canaries_only to true. Each row then"
            " counts as a user, and the audit makes no statement about people who wrote several rows"
        )
    # Copied with the other columns of a row that is set aside, it would be trained on.
    if REJECTED in row and columns.rejected is None and REJECTED not in columns.drop:
        raise InputError(
            f"{where}: training reads the texts of column '{REJECTED}'. Set columns.rejected to this column, or"
            " leave the column out with columns.drop"
        )
    for column in (*columns.text_columns, *([] if columns.rejected is None else [columns.rejected])):
        named = Columns(**{"user": column, **columns.others(), "text": column})
        require_columns(named, row, where, to_name=advice)


def look_at(config: PlantConfig) -> None:
    """Read the first row of a training file before any model is loaded. Raises InputError if the row lacks a column."""
    path, names = config.training, [*config.columns.others().values(), *config.columns.text_columns]
    if is_dataset(path):
        return
    rows = rows_of_file(path, names, BadRows(OnBadRows.SKIP), config.format)
    first = next((numbered for numbered in rows if isinstance(numbered[1], dict)), None)
    if first is not None:
        unit = "row" if path.suffix == ".parquet" else "line"
        require_named(config.columns, first[1], f"{path.name} {unit} {first[0]}")


def _batches(rows: Iterable[tuple[bytes, Row]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    lines = schema is _LINES
    remaining = iter(rows)
    while some := list(itertools.islice(remaining, BATCH_ROWS)):
        content = [{"line": _line(row)} if lines else row for _, row in some]
        try:
            filled = pa.RecordBatch.from_pylist(content, schema=schema)
        except pa.ArrowException as error:
            raise InputError(
                f"a row of the training set does not match its columns ({first_line(error)}): correct the row"
            ) from error
        keys = pa.array([key for key, _ in some], _PLACE.type)
        yield pa.RecordBatch.from_arrays([keys, *filled.columns], schema=pa.schema([_PLACE, *schema]))


def _line(row: Row) -> str:
    text = _AS_IT_IS.encode(row)
    # A lone surrogate outside the text, which only an escape can write.
    return text if is_unicode(text) else json.dumps(row)


@contextmanager
def _text_file(to: Path, form: TextFormat) -> Iterator[io.TextIOWrapper]:
    """Open a file for writing in the encoding of the original. Raises InputError for a character that it cannot
    encode."""
    with pa.output_stream(str(to), compression=_PACKED.get(to.suffix)) as stream:
        text = io.TextIOWrapper(stream, encoding=form.encoding or "utf-8", newline="", write_through=True)
        try:
            yield text
        except UnicodeEncodeError as error:
            raise InputError(
                f"a canary row has a character that {form.encoding} cannot encode: write the training set as UTF-8"
            ) from error
        text.detach()


def _write_json(ordered: Iterator[pa.RecordBatch], form: TextFormat, to: Path, *, lines: bool) -> None:
    with _text_file(to, form) as text:
        rows = (line for batch in ordered for line in batch.column(0).to_pylist())
        if lines:
            text.writelines(f"{line}\n" for line in rows)
            return
        for number, line in enumerate(rows):
            text.write(f"{',' if number else '['}\n{line}")
        text.write("\n]\n")


def _write_csv(
    ordered: Iterator[pa.RecordBatch], header: CsvHeader, form: TextFormat, names: Sequence[str], to: Path
) -> None:
    with _text_file(to, form) as text:
        writer = csv.writer(text, delimiter=header.delimiter, lineterminator="\n")
        writer.writerow(names)
        for batch in ordered:
            writer.writerows(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _write_parquet(ordered: Iterator[pa.RecordBatch], schema: pa.Schema, to: Path) -> None:
    with pq.ParquetWriter(to, schema) as writer:
        for batch in ordered:
            # DuckDB returns its own string types; metadata, such as a dataset's features, are the schema's.
            writer.write_table(pa.Table.from_batches([batch]).cast(schema))
