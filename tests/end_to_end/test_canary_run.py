"""Runs with canary users of every kind: who is trained on, what is scored, what is said, and what a resume keeps."""

import json
import re
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import load_file

import heldin.finetune.batches
import heldin.stages.sides.ledger
from heldin.base.progress import LineReporter
from heldin.bounds.power import forecast
from heldin.corpus.made_up.synthetic import SyntheticCorpus, generate
from heldin.corpus.split import Part, Role
from heldin.jobs.run import run
from heldin.record.document import read_record
from heldin.reports.findings import describe_canaries
from heldin.reports.record_report import report_record
from heldin.stages.run_config import parse_config
from heldin.stages.sides.corpus import read_corpus
from heldin.stages.sides.data import prepare_data
from heldin.stages.sides.ledger import load_ledger
from heldin.stages.train.models import base_model
from heldin.stages.train.training_facts import RECORDS, canary_gradient_norms
from heldin.words.evidence import REAL_USERS, Subjects
from tests.conftest import SMALL
from tests.documents import encode
from tests.documents import ids as ids_of
from tests.pdf_pages import text_of, write_report
from tests.refusals import names

SILENT = LineReporter(lambda line: None)
KINDS = [
    {"kind": "unseen_token", "users": 20, "documents": [12]},
    {"kind": "high_temperature", "users": 6, "documents": [3], "tokens": 10, "temperature": 2.0},
    {"kind": "rare_phrase", "users": 8, "documents": [2, 5]},
    {"kind": "named_person", "users": 5, "documents": [3]},
    {"kind": "substring", "users": 3, "lengths": [2, 8], "documents": [None, 3]},
]
GROUPS = [
    ("high_temperature", None, 3, 6),
    ("named_person", None, 3, 5),
    ("rare_phrase", None, 2, 8),
    ("rare_phrase", None, 5, 8),
    ("substring", 2, None, 3),
    ("substring", 2, 3, 3),
    ("substring", 8, None, 3),
    ("substring", 8, 3, 3),
    ("unseen_token", None, 12, 20),
]


def _config(canaries, **finetune):
    content = json.loads(json.dumps(SMALL))
    content["finetune"] |= finetune
    return parse_config({**content, "canaries": canaries}, "small.yaml")


def _run(folder, config, patch, seed=7):
    """A run under a fixed key, and the texts that the trainer was handed."""
    patch.setattr(heldin.stages.sides.ledger, "new_key", lambda: bytes([seed]) * 32)
    handed = []
    original = heldin.finetune.batches.encode

    def spy(tokenizer, documents, length, done, truncation):
        handed[:] = [document.text for document in documents]
        return original(tokenizer, documents, length, done)

    patch.setattr(heldin.finetune.batches, "encode", spy)
    run(config, folder, SILENT, command="heldin run small.yaml")
    return handed


@pytest.fixture(scope="module")
def planted(make_once):
    """Folder, config and texts trained on of one finished run with every kind of canary user. Read only."""
    config = _config(KINDS, epochs=2)

    def build(folder):
        with pytest.MonkeyPatch.context() as patch:
            handed = _run(folder / "run", config, patch)
        (folder / "handed.json").write_text(json.dumps(handed), encoding="utf-8")
        write_report(folder / "run")

    folder = make_once("canaries", build)
    return folder / "run", config, json.loads((folder / "handed.json").read_text(encoding="utf-8"))


def _table(folder, name):
    return pq.read_table(folder / "ledger" / "canaries" / f"{name}.parquet").to_pylist()


def _pdf_text(folder):
    return " ".join(text_of(folder / "report.pdf").split())


def _original():
    parameters = SMALL["corpus"]["source"]["parameters"]
    of: dict[str, list[str]] = {}
    for record in generate(SyntheticCorpus(**parameters)):
        of.setdefault(record.user, []).append(record.text)
    return of


def test_gradient_norms_are_those_of_one_backward_a_record_at_the_base_model(planted):
    """The histogram again from every scored user's training records, each with a backward of its own."""
    folder, config, _ = planted
    with pytest.MonkeyPatch.context() as patch:
        corpus = read_corpus(config, SILENT)
        base = base_model(config, corpus, SILENT)[1]
        data = prepare_data(config, folder, SILENT, corpus, base)
        sampled = canary_gradient_norms(config, data, base)
        patch.setattr("heldin.stages.train.training_facts.RECORDS", 10_000)
        found = canary_gradient_norms(config, data, base)
    stated = read_record(folder / "record.json").gradient_norms
    assert sampled == stated
    assert sum(stated.canaries) == RECORDS
    norms: dict[bool, list[float]] = {True: [], False: []}
    for user in data.ledger.scored_users():
        for row in data.ledger.parts[user][Part.TRAIN]:
            (ids,) = ids_of(encode(base.tokenizer, [data.store.record(row).text], config.finetune.sequence_length))
            norms[user in data.canaries].append(_norm(base.model, ids))
    edges = np.array(found.edges)
    for its, counts in ((norms[True], found.canaries), (norms[False], found.real)):
        assert sum(counts) == len(its)
        off = np.histogram(its, edges)[0] - counts  # a record on an edge may fall on either side
        assert np.abs(off).sum() <= 4
    ends = min(map(min, norms.values())), max(map(max, norms.values()))  # of two single records
    assert 0.85 * ends[0] < edges[0] < 0.95 * ends[0]
    assert 1.05 * ends[1] < edges[-1] < 1.15 * ends[1]


def _norm(model, ids):
    model.zero_grad()
    tokens = torch.tensor([ids])
    logits = model(input_ids=tokens[:, :-1]).logits[0]
    torch.nn.functional.cross_entropy(logits, tokens[0, 1:]).backward()
    return float(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm())


def test_the_trainer_is_handed_included_canaries_and_no_text_of_the_others(planted):
    folder, _, handed = planted
    ledger = load_ledger(folder / "ledger")
    texts: dict[str, list[str]] = {}
    for record in _table(folder, "records"):
        texts.setdefault(record["user"], []).append(record["text"])
    first = sum(map(len, _original().values()))
    numbered = {first + i: r["text"] for i, r in enumerate(_table(folder, "records"))}
    trained, kept_out = set(), set()
    for user in texts:
        parts = ledger.parts[user]
        assert {row for its in parts.values() for row in its} <= set(numbered)
        assert ledger.roles[user] in (Role.HELD_IN, Role.HELD_OUT)
        included = ledger.roles[user] is Role.HELD_IN
        for part, rows in parts.items():
            (trained if included and part is Part.TRAIN else kept_out).update(numbered[row] for row in rows)
    assert trained <= set(handed)
    assert not kept_out & set(handed)
    assert len(trained) > 100


def test_users_whose_place_a_canary_took_are_in_nothing(planted):
    folder, _, handed = planted
    ledger, originals = load_ledger(folder / "ledger"), _original()
    canaries = [c for c in _table(folder, "users") if c["kind"] == "substring"]
    assert len(canaries) == 12
    sources = {c["source"] for c in canaries}
    assert len(sources) == 12
    assert not sources & set(ledger.roles)
    for canary in canaries:
        marked = {r["text"] for r in _table(folder, "records") if r["user"] == canary["user"]}
        whole = originals[canary["source"]]
        assert {text.replace(canary["mark"], "", 1) for text in marked} & set(whole)
        assert len(marked) == len(whole)
        assert all(canary["mark"] in text for text in marked)
        assert not set(whole) & set(handed)
    trains = {c["user"]: len(ledger.parts[c["user"]][Part.TRAIN]) for c in canaries}
    assert all(trains[c["user"]] == 3 for c in canaries if c["documents"] == 3)
    assert all(trains[c["user"]] > 3 for c in canaries if c["documents"] is None)


def test_the_record_keeps_real_and_canary_users_apart(planted):
    folder, _, _ = planted
    record, ledger = read_record(folder / "record.json"), load_ledger(folder / "ledger")
    names = {c["user"] for c in _table(folder, "users")}
    found = record.canaries
    assert [(g.kind, g.length, g.documents, g.held_in + g.held_out) for g in found.groups] == GROUPS
    assert (found.users, found.held_in + found.held_out, found.replaced) == (59, 59, 12)
    assert record.split.held_in + record.split.held_out == 30 - 12
    assert record.split.held_in == len([u for u in ledger.users(Role.HELD_IN) if u not in names])
    assert sum(record.curve().histogram.held_in) == record.split.held_in
    assert record.training.users == record.split.held_in + found.held_in
    assert record.training.records == record.split.records_by_part["trained on"]
    assert found.trained_on < record.training.records
    subjects = {b.subjects for b in record.judgement.bounds} | {r.subjects for r in record.judgement.refused}
    assert subjects == {REAL_USERS} | {
        Subjects.CANARIES_OF_KIND(kind=kind)
        for kind in ("unseen-token", "high-temperature", "rare-phrase", "named-person", "substring")
    }
    # What was said to be within reach before training is what the real users can reach, who share alpha with all kinds.
    said = [forecast(18, record.judgement.delta, sharing=n)[0] for n in (len(subjects), 1)]
    log = (folder / "log.txt").read_text(encoding="utf-8")
    assert [line in log for line in said] == [True, False]
    assert {v.standing for v in record.judgement.verdicts} == {"certified"}
    scored = set(pq.read_table(folder / "scores.parquet")["user"].to_pylist())
    assert scored == names | {u for u in ledger.roles if u not in names}


@pytest.mark.slow
def test_unseen_token_canaries_are_told_apart_and_certify_a_leak(tmp_path, monkeypatch):
    config = _config([{"kind": "unseen_token", "users": 60, "documents": [20]}], epochs=5, select="last")
    _run(tmp_path / "run", config, monkeypatch)
    record = read_record(tmp_path / "run" / "record.json")
    (group,) = record.canaries.groups
    assert group.auroc.value > 0.97
    assert group.auroc.lower > 0.85
    bounds = [b for b in record.judgement.bounds if b.subjects == Subjects.CANARIES_OF_KIND(kind="unseen-token")]
    assert max(b.epsilon_lower for b in bounds) > 1
    assert {b.standing for b in bounds} == {"certified"}
    assert not any(b.separates for b in record.canaries.blind)


@pytest.mark.slow
def test_canaries_that_training_does_not_touch_are_not_told_apart(tmp_path, monkeypatch):
    """At a learning rate of next to nothing: same canaries, same coins' design, nothing to find."""
    config = _config([{"kind": "unseen_token", "users": 120, "documents": [4]}], epochs=1, learning_rate=1e-9)
    _run(tmp_path / "run", config, monkeypatch)
    record = read_record(tmp_path / "run" / "record.json")
    (group,) = record.canaries.groups
    spread = ((group.held_in + group.held_out + 1) / (12 * group.held_in * group.held_out)) ** 0.5
    assert abs(group.auroc.value - 0.5) < 4.9 * spread < 0.27
    assert max(b.epsilon_lower for b in record.judgement.bounds) < 0.3


def test_neither_record_nor_report_nor_plan_holds_a_canary_s_mark_text_or_source(planted):
    folder, _, _ = planted
    content = "".join(
        (folder / name).read_text(encoding="utf-8") for name in ("record.json", "plan.json", "config.yaml")
    )
    content += _pdf_text(folder)
    for canary in _table(folder, "users"):
        assert canary["user"] not in content
        assert canary["source"] is None or canary["source"] not in content
        if len(canary["mark"]) > 12:
            assert canary["mark"] not in content
    for record in _table(folder, "records"):
        assert record["text"][:40] not in content


def test_report_and_findings_show_the_groups_and_leave_no_hole_without_them(planted, finished):
    folder, _, _ = planted
    record = read_record(folder / "record.json")
    assert "canaries" in report_record(record).figures
    text = _pdf_text(folder)
    assert "Canary users" in text
    for row in ("unseen token, 12 documents", "substring of 8 tokens, all documents", "rare phrase, 2 documents"):
        assert row in text
    assert "one-run, unseen-token canary users" in text
    said = describe_canaries(record)
    assert said.startswith(record.canaries.decision.headline)
    assert (record.canaries.held_in + record.canaries.held_out, record.canaries.replaced) == (59, 12)
    assert names(said, "59", "12")
    without = read_record(finished / "record.json")
    assert without.canaries is None
    assert "canaries" not in report_record(without).figures
    assert describe_canaries(without) == ""
    assert "anary" not in _pdf_text(finished)


def test_a_resumed_run_keeps_its_canaries_and_ends_with_the_same_weights(planted, tmp_path, monkeypatch):
    folder, config, handed = planted
    again = tmp_path / "again"
    again.mkdir()
    shutil.copy(folder / "config.yaml", again)
    shutil.copytree(folder / "ledger", again / "ledger")
    made = {p.name: p.read_bytes() for p in (again / "ledger" / "canaries").iterdir()}

    def fail(*arguments, **options):
        raise AssertionError("canary users were made again")

    monkeypatch.setattr("heldin.canaries.high_temperature.high_temperature_users", fail)
    assert _run(again, config, monkeypatch, seed=8) == handed
    assert {p.name: p.read_bytes() for p in (again / "ledger" / "canaries").iterdir()} == made
    one, other = (load_file(f / "checkpoints" / "final" / "model.safetensors") for f in (folder, again))
    assert all((one[name] == other[name]).all() for name in one)
    assert read_record(again / "record.json").canaries == read_record(folder / "record.json").canaries


def test_a_new_run_of_the_same_config_has_the_same_canaries_and_other_coins(planted, tmp_path, monkeypatch):
    folder, config, _ = planted
    monkeypatch.setattr(heldin.stages.sides.ledger, "new_key", lambda: bytes([9]) * 32)
    corpus = read_corpus(config, SILENT)
    prepare_data(config, tmp_path / "new", SILENT, corpus, base_model(config, corpus, SILENT)[1])
    assert _table(tmp_path / "new", "records") == _table(folder, "records")
    roles = [load_ledger(f / "ledger").roles for f in (folder, tmp_path / "new")]
    assert roles[0].keys() == roles[1].keys()
    assert roles[0] != roles[1]


@pytest.mark.parametrize(
    ("canaries", "by", "naming"),
    [
        (
            [{"kind": "substring", "users": 10, "lengths": [1, 2, 3]}],
            "check_enough_users",
            ("30", "corpus.users", "2"),
        ),
        (
            [{"kind": "substring", "users": 2, "lengths": [3], "documents": [500]}],
            "SubstringCanaries._by_number",
            ("canaries.0", "500", "0", "30", "3", "2"),
        ),
    ],
    ids=["more canaries than users", "more documents than anybody has"],
)
def test_what_cannot_be_planted_is_one_line(call, tmp_path, canaries, by, naming):
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "canaries": canaries}), encoding="utf-8")
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 2
    assert call.refused(by=by, naming=naming)
    assert err.count("error") == 1


def test_a_substring_longer_than_every_document_says_how_many_users_have_one_that_long(call, tmp_path):
    """Two users write long mails, the others short ones; four canary users are asked for."""
    rows = [
        {"user": f"u{u:02d}", "text": " ".join(["word", str(u), str(i)] * (40 if u < 2 else 3))}
        for u in range(24)
        for i in range(8)
    ]
    corpus = tmp_path / "m.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    content = json.loads(json.dumps(SMALL))
    content["corpus"] = {"source": {"kind": "jsonl", "path": str(corpus)}, "users": {"min_records": 8, "max_users": 20}}
    content["canaries"] = [{"kind": "substring", "users": 4, "lengths": [40]}]
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 2
    assert call.refused(by="SubstringCanaries._by_number", naming=("canaries.0", "40"))
    assert re.search(r"\b[0-2] of 20 users\b", err)


@pytest.mark.slow
def test_a_coin_per_user_keeps_the_guarantee_of_a_private_run(tmp_path, monkeypatch):
    content = json.loads(json.dumps(SMALL))
    content["corpus"]["users"] = {"min_records": 8, "fraction": 0.6}
    content["finetune"] = {"learning_rate": 1e-3, "sequence_length": 48, "evaluations": 2, "select": "last"}
    content["defense"] = {
        "kind": "uls",
        "population": 60,
        "cohort": 8,
        "steps": 6,
        "delta": 1e-3,
        "target_epsilon": 6,
        "group_size": 2,
    }
    content["canaries"] = [
        {"kind": "substring", "fraction": 0.3, "lengths": [4]},
        {"kind": "unseen_token", "users": 20, "documents": [6]},
    ]
    _run(tmp_path / "run", parse_config(content, "x"), monkeypatch)
    record = read_record(tmp_path / "run" / "record.json")
    assert record.training.epsilon <= 6
    assert record.training.ceiling is not None
    judged = [*record.judgement.verdicts, *record.judgement.refused]
    assert {its.subjects for its in judged} == {
        REAL_USERS,
        Subjects.CANARIES_OF_KIND(kind="substring"),
        Subjects.CANARIES_OF_KIND(kind="unseen-token"),
    }
    assert not [v for v in record.judgement.verdicts if v.outcome == "contradicted"]
    assert write_report(tmp_path / "run").read_bytes().startswith(b"%PDF")
