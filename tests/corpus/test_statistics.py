"""Corpus statistics against a slow count, and the real corpora's known numbers."""

import gzip
import json
import re
from collections import Counter, defaultdict

import pytest

from heldin.corpus.build import build_store
from heldin.corpus.names import missing_names_line
from heldin.corpus.sources.json_rows import Json
from heldin.corpus.sources.rows import Columns
from heldin.corpus.statistics import corpus_statistics, doubling_histogram, statistics_table
from tests.refusals import names


def _store(tmp_path, pairs):
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps({"user": u, "text": t}) + "\n" for u, t in pairs), encoding="utf-8")
    return build_store(Json(path), tmp_path)


def test_counts_equal_a_slow_count(tmp_path):
    pairs = [(f"u{i % 7}", f"text {i * i % 23}") for i in range(100)]
    found = corpus_statistics(_store(tmp_path, pairs))
    within = sum(n - 1 for n in Counter(pairs).values())
    owners = {t: {u for u, x in pairs if x == t} for _, t in pairs}
    assert found.duplicates_within_users == within
    assert found.duplicates_across_users == sum(len(owners[t]) > 1 for _, t in pairs)
    counts = Counter(t for _, t in pairs)
    assert [r.copies for r in found.most_repeated] == sorted(counts.values())[::-1][:10]
    assert all((counts[r.text], len(owners[r.text])) == (r.copies, r.users) for r in found.most_repeated)
    # Of the texts of one user, and not of all: these would be 23 texts of 4 or 5 copies.
    assert found.copies == doubling_histogram(list(Counter(pairs).values()))
    assert sum(texts for _, _, texts in found.copies) == len(set(pairs)) > len(counts)
    assert (found.users, found.records, found.tokens) == (7, 100, 200)
    assert found.percentiles == (14, 14, 14, 14, 15)


def test_the_histogram_doubles_and_counts_everyone():
    assert doubling_histogram([1, 2, 3, 4, 9]) == ((1, 1, 1), (2, 3, 2), (4, 7, 1), (8, 15, 1))
    assert doubling_histogram([2, 16], [5, 1]) == ((2, 3, 5), (4, 7, 0), (8, 15, 0), (16, 31, 1))


def test_the_table_says_what_a_person_asks_for(tmp_path):
    table = statistics_table(
        corpus_statistics(_store(tmp_path, [("a", "hello  you"), ("a", "hello  you"), ("b", "x")]))
    )
    assert "  P0 1 | P25 1 | P50 1 | P75 2 | P100 2\n" in table
    assert re.search(r"duplicates\b.* 1\n", table)
    assert "hello you" in table


@pytest.mark.slow
def test_the_real_corpora_have_the_numbers_of_their_readme(data_dir, tmp_path):
    columns = Columns(id="id", date="date")
    found = corpus_statistics(build_store(Json(data_dir / "enron_by_sender.jsonl.gz", columns), tmp_path))
    assert (found.users, found.records) == (1992, 129_005)
    assert (found.percentiles[0], found.percentiles[2], found.percentiles[4]) == (10, 21, 2822)
    assert found.duplicates_within_users == 0
    owners = defaultdict(set)
    texts = []
    with gzip.open(data_dir / "enron_by_sender.jsonl.gz", "rt", encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            owners[record["text"]].add(record["user"])
            texts.append(record["text"])
    assert found.duplicates_across_users == sum(len(owners[text]) > 1 for text in texts) == 630


def test_names_that_tables_write_where_there_is_none_are_told():
    line = missing_names_line(["ann", "NaN", "None", "nancy", "null@x"])
    assert names(line, "warning", "2 users")
    assert missing_names_line(["ann", "nancy"]) is None
