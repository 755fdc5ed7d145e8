"""Remove near-duplicates and URLs of fine-tuning texts from a pre-training corpus (Charles et al. 2024, App. D).

The fine-tuning texts decide which texts remain. So a base model trained on the result has no guarantee for the authors
of the fine-tuning texts (docs/theory.md#rules-of-the-data).
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from heldin.base.errors import InputError
from heldin.base.files import cache_directory, private_directory, strict_json, whole_file, write_text
from heldin.base.progress import Reporter
from heldin.corpus.build import build_store
from heldin.corpus.presets.published import Published
from heldin.corpus.presets.source import PresetCorpus
from heldin.corpus.sources.bad_rows import BadRows, OnBadRows
from heldin.corpus.sources.files import FileCorpus
from heldin.corpus.sources.hub_dataset import HubCorpus
from heldin.corpus.sources.kinds import CorpusSource
from heldin.corpus.sources.rows import Source
from heldin.defenses.data_side.deduplicate import shingles
from heldin.defenses.texts.near_duplicates import first_of_similar
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.corpus import reading_of_run
from heldin.stages.train.plan import mechanism_of

CAVEAT = (
    "The fine-tuning texts decided what is in this file, so a model trained on it has no DP guarantee for their"
    " authors. Set defense.base_model_saw_protected: true in every private run that starts from such a model."
)
Address = tuple[str, str]  # host, and the rest


@dataclass(frozen=True)
class Rule:
    """The rule that decides which texts are removed.

    Attributes:
        threshold: least estimated Jaccard similarity of n-grams for two texts to be near-duplicates.
        ngram: number of words per n-gram.
        url: column of the pre-training corpus that contains URLs; None: compare no URLs.
        fine_tuning_url: column of the fine-tuning corpus with URLs to remove; None: remove none of its URLs.
        hosts: hosts to remove, with all their subdomains.
    """

    threshold: float = 0.8
    ngram: int = 5
    url: str | None = None
    fine_tuning_url: str | None = None
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        listed = self.fine_tuning_url is not None or bool(self.hosts)
        if listed and self.url is None:
            raise InputError(
                "--fine-tuning-url and --host need --url: give the column of the pre-training corpus with URLs"
            )
        if blank := [host for host in self.hosts if not _address(host)[0]]:
            raise InputError(f"--host '{blank[0]}' names no host: give one such as stackoverflow.com")
        if self.url is not None and not listed:
            raise InputError(
                "--url gives the column, but not which URLs to remove: also give --fine-tuning-url or --host"
            )


@dataclass(frozen=True)
class Cleaned:
    """Counts of removed records, measured on private texts.

    Attributes:
        fine_tuning: fingerprint of the fine-tuning corpus.
        pretraining: fingerprint of the pre-training corpus.
        compared: number of fine-tuning records.
        records: number of pre-training records.
        near_duplicates: number of records removed because they resemble a fine-tuning record.
        urls: number of other records removed because of their URL.
        without_url: number of other records that have no URL and therefore remain; None if URLs are not compared.
        left: number of records in the file.
        chosen_by_fine_tuning_texts: true; because of this key, heldin refuses the corpus as the base of a private run.
    """

    rule: Rule
    fine_tuning: str
    pretraining: str
    compared: int
    records: int
    near_duplicates: int
    urls: int
    without_url: int | None
    left: int
    chosen_by_fine_tuning_texts: bool = True

    def table(self, out: Path) -> str:
        """Return a line for each step, and a warning about the use of the file."""
        rows = {
            "pre-training records": self.records,
            f"near-duplicates of {self.compared:,} fine-tuning records, removed": self.near_duplicates,
            "from a URL or host of the fine-tuning corpus, removed": self.urls,
            "without a URL, kept": self.without_url,
            f"left, in {out}": self.left,
        }
        lines = [f"{count:>13,}  {words}" for words, count in rows.items() if count is not None]
        return "\n".join([*lines, CAVEAT])


def write_without(config: RunConfig, rule: Rule, out: Path, reporter: Reporter) -> Cleaned:
    """Write ``out``, a corpus for ``model.pretrain.source``. Write the counts next to it, as JSON.

    Args:
        config: config of a run; its ``model.pretrain.source`` is the corpus to clean.
        rule: the rule that decides which texts are removed.
        out: a new file with a name that ends in .jsonl.

    Raises:
        InputError: the config gives protected users a guarantee, a corpus is unusable, or no record would remain.
    """
    pretrain, facts = config.model.pretrain, out.with_suffix(".json")
    if out.suffix != ".jsonl" or out.exists() or facts.exists():
        raise InputError(
            f"--out '{out}': name a new file that ends in .jsonl, without an old '{facts.name}' next to this file"
        )
    if pretrain is None or pretrain.source is None:
        raise InputError("the config has no model.pretrain.source: set it to the public corpus to clean")
    mechanism = mechanism_of(config, plain_steps=1, clip_norm=1.0)
    # Not by the guarantee: under shuffled cohorts there is none, and yet an epsilon that holds is stated.
    if mechanism.unit != "none" and not mechanism.base_model_saw_protected:
        raise InputError(
            f"defense {config.defense.kind} would protect the texts that decide what is removed, but no accountant"
            " covers that: set defense.base_model_saw_protected: true (epsilon is then void), or defense: {kind:"
            " none}"
        )
    source = pretrain.source
    reporter.say("fine-tuning corpus: reading")
    taken = frozenset(_addresses(config.corpus.source, rule.fine_tuning_url)) if rule.fine_tuning_url else frozenset()
    own = build_store(
        config.corpus.opened(reading_of_run(config)), cache_directory(), on_bad=config.corpus.bad_rows, say=reporter.say
    )
    reporter.say("pre-training corpus: reading")
    public = build_store(_with_urls(source, rule.url) if rule.url else source.source(), cache_directory())
    reporter.say(f"near-duplicates: {len(public):,} records against {len(own):,}")
    sketched = (shingles(text, rule.ngram) for text in chain(own.texts(), public.texts()))
    stays = first_of_similar(sketched, rule.threshold, fixed=len(own))[len(own) :]
    barred = tuple(_address(host)[0] for host in rule.hosts)
    urls = without = left = 0
    private_directory(out.parent)
    with whole_file(out, private=True) as temporary, temporary.open("w", encoding="utf-8") as lines:
        for row in stays.nonzero()[0].tolist():
            its = public.record(row)
            if rule.url and not (its.date or "").strip():
                without += 1
            elif rule.url and _is_from(_address(str(its.date)), taken, barred):
                urls += 1
                continue
            line = {"user": its.user, "id": its.id, "text": its.text, **({"url": its.date} if rule.url else {})}
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")
            left += 1
        if not left:
            raise InputError(f"all {len(public):,} pre-training records would be removed: give another corpus")
    near = int((~stays).sum())
    counts = (len(own), len(public), near, urls, without if rule.url else None, left)
    cleaned = Cleaned(rule, own.fingerprint, public.fingerprint, *counts)
    write_text(facts, strict_json(asdict(cleaned)) + "\n", private=True)
    return cleaned


def _with_urls(source: CorpusSource, column: str) -> Source:
    """Return the source with URLs in place of the records' dates, because this module needs no dates."""
    if isinstance(source, HubCorpus) or (isinstance(source, FileCorpus) and source.kind in ("jsonl", "csv", "parquet")):
        return source.model_copy(update={"columns": replace(source.columns, date=column)}).source()
    raise InputError(
        f"a corpus of kind {source.kind} has no column '{column}': name its files as jsonl, csv or parquet"
    )


def _addresses(source: CorpusSource, column: str) -> Iterator[Address]:
    """Yield the addresses in a column. Skips unusable rows and blank values."""
    bad = BadRows(OnBadRows.SKIP)
    values: Iterator[Any]
    if isinstance(source, PresetCorpus):
        rows = Published(f"a file with URLs in '{column}'", (column,)).rows(source.path, bad)
        values = (row.get(column) for _, row in rows if isinstance(row, dict))
    else:
        batches = _with_urls(source, column).batches(bad)
        values = chain.from_iterable(batch["date"].to_pylist() for batch in batches)
    # A blank one would be that of every record without a URL.
    yield from (_address(str(value)) for value in values if value is not None and str(value).strip())


def _address(url: str) -> Address:
    """Return lower-case host, path and query, without scheme, port, www., fragment and a final slash."""
    bare = re.sub(r"^[a-z][a-z0-9+.-]*://", "", url.strip(), flags=re.IGNORECASE)
    try:
        parts = urlsplit(f"//{bare}")
        host = (parts.hostname or "").removeprefix("www.")
    except ValueError:  # brackets without an address
        return "", bare
    return host, parts.path.rstrip("/") + (f"?{parts.query}" if parts.query else "")


def _is_from(address: Address, taken: frozenset[Address], hosts: Sequence[str]) -> bool:
    return address in taken or any(address[0] == host or address[0].endswith(f".{host}") for host in hosts)


def as_dict(cleaned: Cleaned) -> dict[str, Any]:
    """Return every count, for JSON."""
    return asdict(cleaned)
