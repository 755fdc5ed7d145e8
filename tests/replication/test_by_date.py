"""A corpus split by date, and finished models measured on the later part."""

import gzip
import json
import math

import pytest
import torch

from heldin.models.opening import load_language_model

LINES = [
    {"user": "ann", "text": "an early text by ann", "id": "1", "date": "2017-12-31T23:59:59"},
    {"user": "ann", "text": "a late text by ann", "id": "2", "date": "2018-01-01"},
    {
        "user": "ben",
        "text": "a late text by ben, much longer than that by ann",
        "id": "3",
        "date": "2018-06-01T00:00:00+00:00",
    },
]


def split(replicate, folder, lines):
    (folder / "posts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    columns = "{user: user, text: text, id: id, date: date}"
    (folder / "run.yaml").write_text(
        f"name: posts\nmodel: {{base: none}}\ncorpus: {{source: {{kind: jsonl, path: {folder}/posts.jsonl, columns:"
        f" {columns}}}}}\n",
        encoding="utf-8",
    )
    return replicate("split-by-date", folder / "run.yaml", "--date", "2018-01-01", "--out", folder / "parts")


def test_records_are_split_by_their_date(replicate, tmp_path):
    code, out, err = split(replicate, tmp_path, LINES)
    assert code == 0, err
    parts = {
        name: gzip.decompress((tmp_path / "parts" / f"{name}.jsonl.gz").read_bytes()).splitlines()
        for name in ("before", "after")
    }
    assert {name: [json.loads(line)["id"] for line in lines] for name, lines in parts.items()} == {
        "before": ["1"],
        "after": ["2", "3"],
    }
    assert "before.jsonl.gz: 1 records" in out


def test_a_record_without_a_date_is_refused(replicate, tmp_path):
    code, _, err = split(
        replicate, tmp_path, [*LINES, {"user": "cy", "text": "when was this", "id": "4", "date": "May"}]
    )
    assert code == 2
    assert all(word in err for word in ("'4'", "'May'"))


def test_the_later_loss_is_a_mean_over_users_and_the_perplexity_one_over_tokens(replicate, swept, tmp_path):
    _, out, _ = swept
    split(replicate, tmp_path, LINES)
    run = out / "cells" / "1" / "uls"
    code, printed, err = replicate("later-loss", tmp_path / "parts" / "after.jsonl.gz", run, "--json")
    assert code == 0, err
    (found,) = json.loads(printed)["later"]
    lm = load_language_model(str(run / "checkpoints" / "final"))
    sums = []
    for line in LINES[1:]:
        tokens = [lm.tokenizer.eos_token_id, *lm.tokenizer(line["text"], add_special_tokens=False)["input_ids"]]
        with torch.no_grad():
            logits = lm.model(torch.tensor([tokens[:-1]])).logits[0].double()
        logprobs = torch.log_softmax(logits, -1)[range(len(tokens) - 1), tokens[1:]]
        sums.append((float(-logprobs.sum()), len(tokens) - 1))
    assert found["users"] == 2
    assert found["loss"] == pytest.approx(sum(total / count for total, count in sums) / 2, rel=1e-3)
    whole = sum(total for total, _ in sums) / sum(count for _, count in sums)
    assert found["perplexity"] == pytest.approx(math.exp(whole), rel=1e-3)
