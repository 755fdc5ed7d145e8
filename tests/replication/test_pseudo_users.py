"""Texts dealt to pseudo-users: whose law it is, that the file's order decides nothing, and lower case."""

import collections
import itertools
import json
import random

import numpy as np
from scipy import stats

from replication.pseudo_users import dealt, plain, sizes


def test_numbers_of_texts_are_normal():
    drawn = np.array(list(itertools.islice(sizes(15.0, 2.0, 4), 4000)))
    edges = [-np.inf, *np.arange(11.5, 19.5), np.inf]

    def p_value(mean, spread):
        expected = 4000 * np.diff(stats.norm.cdf(edges, mean, spread))
        return stats.chisquare(np.histogram(drawn, edges)[0], expected).pvalue

    assert p_value(15.0, 2.0) > 1e-3
    # Neither another deviation nor a variance of 2 is the paper's.
    assert p_value(15.0, 2.3) < 1e-9
    assert p_value(15.0, 2.0**0.5) < 1e-9
    assert min(itertools.islice(sizes(1.0, 5.0, 0), 100)) == 1


def test_every_text_is_dealt_once_and_whatever_the_files_order():
    texts = [f"text {i}" for i in range(200)]
    pairs = list(dealt(texts, 15.0, 2.0, 0))
    assert sorted(text for _, text in pairs) == sorted(texts)
    assert pairs == list(dealt([*texts[::-1], *texts[:50]], 15.0, 2.0, 0))
    assert pairs != list(dealt(texts, 15.0, 2.0, 1))
    *whole, last = collections.Counter(user for user, _ in pairs).values()
    assert whole == list(itertools.islice(sizes(15.0, 2.0, 0), len(whole)))
    assert 0 < last <= 22


def test_lower_case_without_punctuation():
    assert plain("The U.S. -- it's  60%!") == "the u s it s 60"
    assert plain("...") == ""


def test_the_command_writes_a_corpus(replicate, tmp_path):
    dice = random.Random(0)
    rows = [{"body": f"Text {i}: {dice.choice('ABC')}.", "topic": 1} for i in range(100)]
    file, out = tmp_path / "texts.jsonl", tmp_path / "new" / "users.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    code, said, err = replicate("pseudo-users", file, "--out", out, "--text", "body", "--mean", 10, "--lower")
    assert code == 0, err
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert {line["text"] for line in lines} == {plain(row["body"]) for row in rows}
    assert len({line["id"] for line in lines}) == len(lines) == 100
    assert "100" in said
    assert 8 <= len({line["user"] for line in lines}) <= 13
    assert replicate("pseudo-users", file, "--out", out, "--text", "nothing")[0] == 2
