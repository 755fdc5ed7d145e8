"""``heldin corpus``: build a corpus, or show its contents."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heldin.base.errors import InputError
from heldin.base.wording import counted
from heldin.commands.made_up import made_up_rows
from heldin.commands.options import (
    Aliases,
    AsCsv,
    AsJson,
    DateColumn,
    Delimiter,
    Encoding,
    IdColumn,
    PagedGroup,
    Quiet,
    RowsField,
    SkipBad,
    Strict,
    TemplateFile,
    TextColumn,
    UserColumn,
    answer,
    json_text,
    rows_rule,
)

if TYPE_CHECKING:
    from heldin.corpus.chat.template import ChatTemplate
    from heldin.corpus.sources.bad_rows import OnBadRows
    from heldin.corpus.sources.rows import Columns, Source
    from heldin.corpus.sources.text_files import TextFormat
    from heldin.corpus.store import CorpusStore

ENTITIES = "How entities are found"
CAPS = "Caps, as for heldin account user-entity"
app = typer.Typer(
    cls=PagedGroup, help="Build a corpus, or show its contents.", no_args_is_help=True, add_completion=False
)

Paths = Annotated[
    list[Path],
    typer.Argument(
        help="Files or folders, read in order as one corpus. To list the formats, run: heldin corpus formats."
    ),
]
PresetName = Annotated[
    str | None,
    typer.Option(
        "--preset",
        help="Preset for a local copy of a published dataset. To list the presets, run: heldin corpus presets.",
    ),
]


@app.command()
def build(
    paths: Paths,
    preset: PresetName = None,
    user: UserColumn = "user",
    text: TextColumn = "text",
    id: IdColumn = None,
    date: DateColumn = None,
    aliases: Aliases = None,
    skip_bad_rows: SkipBad = False,
    strict: Strict = False,
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    field: RowsField = None,
    template: TemplateFile = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Build the corpus on a Ray cluster, with one task per file.")
    ] = False,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="HOST:PORT of a Ray cluster, or auto (default: only this machine).", hidden=True
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="With --preset: tokenizer that counts tokens (default: count words)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", dir_okay=False, help="Also write all records to this .parquet or .jsonl file."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Read and check texts, and store them in the cache.

    heldin prints the folder of the corpus in the cache. If the corpus is already in the cache, heldin does not build it
    again. The corpus may be larger than memory. With --ray-address, all machines must share the file system of the
    cache ($HELDIN_CACHE_DIR).
    """
    from heldin.corpus.store import require_writable, write_corpus

    columns, form, rule = (
        _columns(user, text, id, date),
        _form(encoding, delimiter, field),
        rows_rule(skip_bad_rows, strict),
    )
    if out is not None:
        require_writable(out)
    # Before anything is read; ignored in silence, the option would seem to have had an effect.
    if preset is None and tokenizer is not None:
        raise InputError("--tokenizer is only for the thresholds of a preset: give --preset, or leave out --tokenizer")
    if ray or ray_address:
        # A preset's thresholds count over the whole corpus, and a task of the cluster sees one file.
        if preset is not None:
            raise InputError("--preset counts over all files, and a cluster cannot split such a count: leave out --ray")
        from heldin.base.files import cache_directory
        from heldin.corpus.cluster import build_on_cluster
        from heldin.corpus.names import load_aliases
        from heldin.corpus.sources.open import open_source

        store = build_on_cluster(
            [open_source(path, columns, form) for path in paths],
            cache_directory(),
            address=ray_address or "local",
            aliases=load_aliases(aliases) if aliases else None,
            on_bad=rule,
        )
    else:
        store = _store(_source(paths, preset, tokenizer, columns, form, template), aliases, rule)
    _say_missing_names(store)
    if out is not None:
        write_corpus(store, out)
    if json:
        fields = {"users": len(store.users), "records": len(store), "folder": str(store.folder)}
        skipped = store.report.skipped
        counts = {**skipped.model_dump(exclude={"first"}), "first": str(skipped.first) if skipped.first else None}
        typer.echo(json_text({**fields, "skipped": counts, "preset": _outcome(preset, store)}))
        return
    where = store.folder if out is None else out
    typer.echo(f"{counted(len(store.users), 'user')}, {counted(len(store), 'record')}: {where}")
    for line in store.report.skipped.lines("corpus", len(store)):
        typer.echo(line)
    if preset is not None:
        typer.echo(_outcome(preset, store))


@app.command()
def stats(
    paths: Paths,
    preset: PresetName = None,
    user: UserColumn = "user",
    text: TextColumn = "text",
    id: IdColumn = None,
    date: DateColumn = None,
    aliases: Aliases = None,
    skip_bad_rows: SkipBad = False,
    strict: Strict = False,
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    field: RowsField = None,
    template: TemplateFile = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Tokenizer that counts tokens (default: count words).")
    ] = None,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Show users, records, sizes, histograms and repeated texts. The output contains texts that people wrote."""
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.corpus.statistics import corpus_statistics, statistics_table

    reporter = reporter_for_this_terminal()
    form = _form(encoding, delimiter, field)
    source = _source(paths, preset, tokenizer, _columns(user, text, id, date), form, template)
    store = _store(source, aliases, rows_rule(skip_bad_rows, strict))
    if tokenizer is None:
        statistics = corpus_statistics(store, reporter=reporter)
    else:
        from heldin.models.loading import load_tokenizer

        encode = load_tokenizer(tokenizer)
        statistics = corpus_statistics(
            store,
            count_tokens=lambda t: len(encode(t, add_special_tokens=False)["input_ids"]),
            token_unit="tokens",
            reporter=reporter,
        )
    _say_missing_names(store)
    outcome = _outcome(preset, store)
    table = "\n".join([statistics_table(statistics), *([outcome] if outcome else [])])
    # As CSV the histogram of users alone: one file is one table.
    rows = [{"records_from": low, "records_to": high, "users": users} for low, high, users in statistics.histogram]
    answer(table, {**asdict(statistics), "preset": outcome}, rows, json=json, csv=csv)


@app.command()
def entities(
    paths: Paths,
    gold: Annotated[
        bool,
        typer.Option(
            "--gold", help="Read the entities from the last column of a CoNLL file.", rich_help_panel=ENTITIES
        ),
    ] = False,
    words: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="File with one name per line, optionally followed by a tab and a category (default: person).",
            rich_help_panel=ENTITIES,
        ),
    ] = None,
    pattern: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD",
            help="Find addresses and numbers with presidio: email, phone (slow), credit_card, iban, ip_address, us_ssn,"
            " crypto or url. Repeatable.",
            rich_help_panel=ENTITIES,
        ),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(help="Name or folder of a spaCy pipeline that finds entities.", rich_help_panel=ENTITIES),
    ] = None,
    category: Annotated[
        list[str] | None,
        typer.Option(
            help="Category to count, such as person or org. Repeatable (default: all).",
            rich_help_panel=ENTITIES,
            hidden=True,
        ),
    ] = None,
    group_size: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of records per user. heldin also counts the records that the caps keep.",
            rich_help_panel=CAPS,
        ),
    ] = None,
    entity_cap: Annotated[
        int | None,
        typer.Option(help="With --group-size: maximum number of records that name an entity.", rich_help_panel=CAPS),
    ] = None,
    sentences: Annotated[
        bool, typer.Option("--sentences", help="Count each sentence as a record.", rich_help_panel=ENTITIES)
    ] = False,
    user: UserColumn = "user",
    text: TextColumn = "text",
    id: IdColumn = None,
    date: DateColumn = None,
    aliases: Aliases = None,
    skip_bad_rows: SkipBad = False,
    strict: Strict = False,
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    field: RowsField = None,
    template: TemplateFile = None,
    quiet: Quiet = False,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Count names and numbers in texts, without printing them.

    heldin counts entities per category, and records and authors per entity. Give exactly one
    of --gold, --words, --pattern and --pipeline. For a CoNLL file, the command also prints recall and precision.
    """
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.corpus.entities.study import chosen_source, entity_table, known_categories, study_entities
    from heldin.corpus.names import load_aliases
    from heldin.corpus.sources.sentences import Sentences
    from heldin.defenses.texts.caps import caps_outcome

    if (group_size is None) != (entity_cap is None):
        raise InputError("one cap is missing: give both --group-size and --entity-cap, or neither option")
    columns, form = _columns(user, text, id, date), _form(encoding, delimiter, field)
    records = _source(paths, None, None, columns, form, template)
    known = load_aliases(aliases) if aliases else None
    counted_categories = known_categories(category or [])
    source = Sentences(records) if sentences else records
    study = study_entities(
        _store(source, aliases, rows_rule(skip_bad_rows, strict)),
        chosen_source(source, gold=gold, words=words, patterns=pattern or [], pipeline=pipeline),
        source,
        categories=counted_categories,
        aliases=known,
        reporter=reporter_for_this_terminal(),
    )
    caps = None
    if group_size is not None and entity_cap is not None:
        caps = caps_outcome(
            study.mentions,
            group_size=group_size,
            entity_cap=entity_cap,
            categories=counted_categories,
            aliases=known,
        )
    rows = [asdict(count) for count in study.statistics.categories]
    table = entity_table(study.statistics, study.agreement)
    if caps is not None:
        table += (
            f"\n\ncaps G = {caps.group_size}, k = {caps.entity_cap} keep {caps.kept:,} of {len(study.mentions.store):,}"
            f" records (G alone {caps.kept_by_group_size:,})"
        )
    answer(table, {**study.as_dict(), "caps": asdict(caps) if caps else None}, rows, json=json, csv=csv)


@app.command()
def presets(json: AsJson = False) -> None:
    """List the presets: published datasets, and how heldin prepares each one."""
    from heldin.corpus.presets.catalogue import presets_dict, presets_table

    typer.echo(json_text({"presets": presets_dict()}) if json else presets_table())


@app.command()
def formats(json: AsJson = False) -> None:
    """List the formats that heldin reads, and where each one stores users and texts."""
    from heldin.corpus.sources.open import formats_dict, formats_table

    typer.echo(json_text({"formats": formats_dict()}) if json else formats_table())


@app.command()
def example(
    out: Annotated[Path, typer.Option("--out", "-o", file_okay=False, help="New folder for the example files.")],
    users: Annotated[int, typer.Option(help="Number of made-up users; half of them are public.")] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the texts; the same seed gives the same files.")] = 0,
    models: Annotated[
        bool,
        typer.Option(
            "--models", help="Also train a small base model and fine-tune it (takes two minutes on two cores)."
        ),
    ] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Write two-turn chats instead of texts.")] = False,
    pairs: Annotated[bool, typer.Option("--pairs", help="Write preference pairs instead of texts.")] = False,
    quiet: Quiet = False,
    json: AsJson = False,
) -> None:
    """Write example files, and print a command to try on each file."""
    from heldin.base.progress import reporter_for_this_terminal
    from heldin.jobs.example import lines, write_example

    rows, reporter = made_up_rows(chat, pairs), reporter_for_this_terminal()
    files = write_example(out, users=users, seed=seed, models=models, rows=rows, reporter=reporter)
    if json:
        named = [{"file": str(file.path), "holds": file.holds, "try": file.command} for file in files]
        typer.echo(json_text({"files": named}))
    else:
        typer.echo("\n".join(lines(files)))


def _say_missing_names(store: "CorpusStore") -> None:
    from heldin.corpus.names import missing_names_line

    if line := missing_names_line(store.users):
        typer.echo(line, err=True)


def _outcome(preset: str | None, store: "CorpusStore") -> str | None:
    """Return a text that compares the counts after a preset with the paper's counts; None without a preset."""
    if preset is None:
        return None
    from heldin.corpus.presets.catalogue import preset_named, preset_outcome

    return preset_outcome(preset_named(preset), store)


def _columns(user: str, text: str, id_: str | None, date: str | None) -> "Columns":
    from heldin.corpus.sources.rows import Columns

    return Columns(user, text, id_, date)


def _form(encoding: str | None, delimiter: str | None, field: str | None) -> "TextFormat":
    from heldin.corpus.sources.text_files import TextFormat

    return TextFormat(encoding, delimiter, field)


def _source(
    paths: list[Path],
    preset: str | None,
    tokenizer: str | None,
    columns: "Columns",
    form: "TextFormat",
    template: Path | None,
) -> "Source":
    from heldin.corpus.chat.opening import StatedRows, reading_of
    from heldin.corpus.sources.open import open_sources

    if preset is None:
        source = open_sources(paths, columns, form)
        reading = reading_of(source.first_row(), columns, StatedRows(), lambda: _template(template, tokenizer))
        for line in reading.lines(trains=False):
            typer.echo(str(line), err=True)
        return open_sources(paths, reading.columns, form) if reading.has_turns else source
    if template is not None:
        raise InputError("--preset reads texts, and texts need no chat template: leave out --template")
    if form != _form(None, None, None):
        raise InputError("--preset sets the format of its files: leave out --encoding, --delimiter and --field")
    # Defaults tell that no option was given; an option that repeats its default does no harm.
    if columns != _columns("user", "text", None, None):
        raise InputError("--preset sets its columns: leave out --user, --text, --id and --date")
    if len(paths) != 1:
        raise InputError(f"--preset reads one file or one folder, but {len(paths)} paths were given: give only one")
    from heldin.corpus.presets.catalogue import PresetSource, preset_named
    from heldin.corpus.presets.source import preset_tokens

    return PresetSource(preset_named(preset), paths[0], preset_tokens(tokenizer))


def _template(file: Path | None, tokenizer: str | None) -> "ChatTemplate":
    """Return the chat template in the file, or else the template of the tokenizer, or else ChatML.

    The choice does not change which parts of messages are counted.
    """
    from heldin.base.files import existing
    from heldin.corpus.chat.template import CHATML, ChatTemplate

    if tokenizer is not None:
        from heldin.models.loading import load_tokenizer

        loaded = load_tokenizer(tokenizer)
        if file is not None or loaded.chat_template:
            return ChatTemplate.of(loaded, tokenizer, file=file)
    return ChatTemplate(CHATML if file is None else existing(file).read_text(encoding="utf-8"), {})


def _store(source: "Source", aliases: Path | None, rule: "OnBadRows") -> "CorpusStore":
    from heldin.base.files import cache_directory
    from heldin.corpus.build import build_store
    from heldin.corpus.names import load_aliases

    for how in source.look():
        typer.echo(str(how), err=True)
    return build_store(
        source,
        cache_directory(),
        aliases=load_aliases(aliases) if aliases else None,
        on_bad=rule,
    )
