"""``heldin plant``: draw coins, plant canary users, and write the training set that somebody else's trainer reads."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from heldin.base.errors import InputError
from heldin.base.files import one_process_at_a_time, whole_directory
from heldin.base.progress import Reporter
from heldin.base.purged import require_not_purged
from heldin.base.wording import counted
from heldin.bounds.power import forecast
from heldin.corpus.sources.rows import BadRows, existing
from heldin.corpus.split import Role
from heldin.jobs.config import first_difference
from heldin.jobs.planted.config import PlantConfig, is_dataset
from heldin.jobs.planted.data import CORPUS, planted_data, planted_rows
from heldin.jobs.planted.folder import (
    CONFIG,
    MANIFEST,
    TRAINING,
    Manifest,
    plan_hash,
    read_plant_config,
    read_planted,
    write_config,
    write_manifest,
)
from heldin.jobs.planted.row_text import Row
from heldin.jobs.planted.training_set import TrainingSet, content_sha256, training_set
from heldin.jobs.run.data import RunData
from heldin.models.loading import load_language_model, require_model


def plant(config: PlantConfig, out: Path, reporter: Reporter) -> Manifest:
    """Plant in ``out``, or go on with what a call of the same config began there.

    Args:
        config: what is planted, and everything about the audit.
        out: the folder: training set and manifest to hand on, and secrets to keep.
        reporter: receives the progress.

    Raises:
        InputError: the training set or the model cannot be used, or ``out`` holds something else.
    """
    require_model(config.reference)
    require_not_purged(out)
    # Before the folder: what cannot be read leaves nothing behind.
    if not is_dataset(config.training):
        existing(config.training)
    with one_process_at_a_time(out):
        _take_folder(config, out)
        if (out / MANIFEST).is_file():
            return read_planted(out)[1]
        base = load_language_model(config.reference, revision=config.revision)
        source = training_set(config, base.tokenizer)
        _copy_records(config, source, out, reporter)
        data = planted_data(config, out, reporter, base, source.text)
        for line in said_beforehand(config, data):
            reporter.say(line)
        with reporter.track("writing", len(data.training_rows), "rows") as advance:

            def told() -> Iterator[tuple[bytes, Row]]:
                for its in planted_rows(source, data):
                    yield its
                    advance(1)

            with whole_directory(out / TRAINING) as temporary:
                written = source.write(told(), temporary, out / f".{TRAINING}.sorting")
                sha256 = content_sha256(written)
        manifest = Manifest(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            plan=plan_hash(config),
            ledger=data.ledger.commitment(),
            file=config.training.name,
            sha256=sha256,
            rows=len(data.training_rows),
            columns=config.columns.model_dump(exclude_none=True, exclude=_unread(config)),
            looks=config.looks,
        )
        write_manifest(manifest, out)
    return manifest


def said_beforehand(config: PlantConfig, data: RunData) -> list[str]:
    """What the audit could certify at best, and what it costs in rows."""
    users, corpus = data.real(data.ledger.scored_users()), data.corpus.store
    replaced = {its.source for its in data.canaries.values() if its.source is not None}
    rows = int(corpus.counts.sum())
    kept = sum(1 for row in data.training_rows if row < rows)
    planted = len(data.training_rows) - kept
    always = sum(data.ledger.roles.get(user, Role.ALWAYS_IN) is Role.ALWAYS_IN for user in data.store.users)
    lines = [
        f"price: {rows - kept:,} of {rows:,} rows are not trained on (of held-out users, set aside, or of"
        f" {counted(len(replaced), 'user')} whose place canary users take), and {counted(planted, 'row')} of canary"
        f" users are; {counted(always, 'user')} always in"
    ]
    lines += forecast(len(users), config.audit.delta)
    if data.canaries:
        lines += forecast(len(data.canaries), config.audit.delta, units="canary users", one="canary user")
    if config.looks > 1:
        lines.append(f"power: {config.looks} looks share the error probability, so that each says less than this")
    return lines


def _copy_records(config: PlantConfig, source: TrainingSet, out: Path, reporter: Reporter) -> None:
    """Keep the records, so that the audit does not need the training set again."""
    if (out / "ledger" / CORPUS).is_file():
        return
    bad = BadRows(skip=config.skip_bad_lines)
    reporter.say("training set: reading")
    source.copy_records(out / "ledger" / CORPUS, bad)
    if bad.skipped:
        reporter.say(f"training set: {counted(bad.skipped, 'row')} left out, the first: {bad.first}")


def _unread(config: PlantConfig) -> set[str]:
    """The column of plain text, where the text stands elsewhere."""
    return set() if config.columns.messages is None and config.columns.prompt is None else {"text"}


def _take_folder(config: PlantConfig, out: Path) -> None:
    if (out / CONFIG).is_file():
        changed = first_difference(read_plant_config(out).model_dump(mode="json"), config.model_dump(mode="json"))
        if changed and (out / "ledger" / "ledger.json").is_file():
            raise InputError(
                f"'{out}' holds a training set planted otherwise ('{changed}' differs): choose another --out"
            )
        # Of a call that was killed while it sorted.
        shutil.rmtree(out / f".{TRAINING}.sorting", ignore_errors=True)
        if changed:
            # No coin was drawn: the call before ended at what was wrong with its config.
            shutil.rmtree(out / "ledger")
            write_config(config, out)
        return
    if any(out.iterdir()):
        raise InputError(f"'{out}' is not empty and holds no planted training set: choose another --out")
    write_config(config, out)
