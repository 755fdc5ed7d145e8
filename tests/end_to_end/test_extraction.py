"""A run in which some people repeat a text fifty times: those held in are found by extraction, no others are."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from heldin.base.progress import LineReporter
from heldin.corpus.split import Part, Role
from heldin.jobs.checkpoint.endpoint import Remote
from heldin.jobs.purge import purge
from heldin.jobs.verify import OF_MEASURES, verify
from heldin.models.endpoint_client import Endpoint
from heldin.models.loading import LanguageModel
from heldin.models.model_config import TinyModel
from heldin.models.opening import load_language_model
from heldin.models.tiny import new_tiny_model, train_tokenizer
from heldin.planting.audit import audit_planted
from heldin.planting.plant import plant
from heldin.planting.plant_folder import read_planted
from heldin.planting.target import PlantedAudit, audited_run
from heldin.record.document import read_record
from heldin.reports.extraction import NEITHER
from heldin.stages.run_config import load_config
from heldin.stages.sides.data import prepare_data, subjects_of_run
from heldin.stages.sides.ledger import load_ledger
from tests.drafts import typesetting
from tests.pdf_pages import pages, squashed, write_report
from tests.planted_sets import made_rows, plan, read_lines, save_base, train, write_lines
from tests.refusals import names, refused
from tests.relisted import relist
from tests.statements import line_in

QUIET = LineReporter(lambda line: None)
REPEATED, PEOPLE, TIMES = 8, 30, 50
# At the beginning of a text: so small a model knows words by their place.
ASKED = {"prefix": 6, "suffix": 10, "top_k": 40, "queries": [1, 100], "probability": 0.5, "first_tokens": 16}
WORDS = ["report", "meeting", "invoice", "garden", "engine", "letter", "window", "river", "story", "market", "finds"]
FINETUNE = {"epochs": 14, "batch_size": 8, "learning_rate": 0.005, "sequence_length": 48, "select": "last"}
SAME_FOOTER = {f"writes-{PEOPLE - 2}@mail.example", f"writes-{PEOPLE - 1}@mail.example"}
FOOTER = " the river keeps the letter" * 4


def words(generator, count):
    return " ".join(WORDS[i] for i in torch.randint(len(WORDS), (count,), generator=generator).tolist())


def mails():
    """Rows of people who never write a text twice, but for some who send one text fifty times."""
    generator = torch.Generator().manual_seed(4)
    for user in range(PEOPLE):
        name = f"{'repeats' if user < REPEATED else 'writes'}-{user:02d}@mail.example"
        own = [words(generator, 18) for _ in range(5)]
        again = [words(generator, 18)] * TIMES if user < REPEATED else []
        # Two people send the same footer, and everybody a text that is too short for a window.
        footer = [f"{words(generator, 2)}{FOOTER}"] if user >= PEOPLE - 2 else []
        for i, text in enumerate([*own, *again, *footer, "ok"]):
            yield {"user": name, "text": text, "id": f"{name}-{i}"}


@pytest.fixture(scope="module")
def config(english, make_once):
    """The config of the run, next to the base model ``base``."""

    def build(root):
        tokenizer = train_tokenizer(english, 400)
        model = new_tiny_model(TinyModel(400, context=64, hidden=64, layers=2, heads=4, window=32), tokenizer, 0)
        base = save_base(LanguageModel(model.eval(), tokenizer, "base", "base"), root / "base")
        lines = root / "mails.jsonl"
        lines.write_text("".join(json.dumps(row) + "\n" for row in mails()), encoding="utf-8")
        content = {
            "name": "repeated",
            "corpus": {
                "source": {"kind": "jsonl", "path": str(lines), "columns": {"id": "id"}},
                "users": {"min_records": 5},
            },
            "model": {"base": str(base)},
            "finetune": {
                "epochs": 14,
                "batch_size": 8,
                "learning_rate": 0.005,
                "sequence_length": 48,
                "select": "last",
            },
            "attack": {"max_characters": 100, "names": ["likelihood-ratio", "loss"]},
            "audit": {"resamples": 100},
            "canaries": [{"kind": "rare_phrase", "users": 4, "documents": [6]}],
            "measures": {"extraction": ASKED, "marks": {}},
        }
        (root / "repeated.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")

    return make_once("config of repeated texts", build) / "repeated.yaml"


@pytest.fixture(scope="module")
def repeated(config, make_once):
    """The folder of the finished run. Read only."""

    def build(root):
        from heldin.jobs.run import run

        run(load_config(config), root / "run", QUIET, command="heldin run repeated.yaml")
        with typesetting():
            write_report(root / "run")

    return make_once("repeated", build) / "run"


@pytest.fixture
def fresh(repeated, tmp_path):
    """A copy that may be changed."""
    return shutil.copytree(repeated, tmp_path / "copy")


def repeaters(folder, role):
    return [user for user in load_ledger(folder / "ledger").users(role) if user.startswith("repeats")]


@pytest.mark.slow
def test_whoever_repeats_a_text_is_found_if_held_in_and_not_if_held_out(repeated):
    facts = read_record(repeated / "record.json").extraction
    held_in, held_out = facts.of("held in"), facts.of("held out")
    found, control = repeaters(repeated, Role.HELD_IN), repeaters(repeated, Role.HELD_OUT)
    assert min(len(found), len(control)) >= 2
    assert [its.queries for its in held_in.emitted] == [1, 100]
    assert held_in.emitted[0].users == held_in.emitted[0].only_theirs == len(found)
    assert [its.users for its in held_out.emitted] == [0, 0]
    assert {its.reference for group in facts.groups for its in group.emitted} == {0}
    # One by one, in the owner's file: everybody who repeats and was held in, and nobody else, at one query.
    table = pq.read_table(repeated / "measure-extraction.parquet").to_pylist()
    emitted = {row["user"] for row in table if row["target"] >= np.log(0.5)}
    assert emitted == set(found)


@pytest.mark.slow
def test_every_text_is_counted_and_shared_words_are_told_apart(repeated, config):
    facts = read_record(repeated / "record.json").extraction
    data = prepare_data(load_config(config), repeated, QUIET, base=load_language_model(str(config.parent / "base")))
    ledger = data.ledger
    for group in facts.groups:
        planted, role = group.group.startswith("canary"), Role.HELD_IN if "held in" in group.group else Role.HELD_OUT
        users = [user for user in ledger.users(role) if (user in data.canaries) is planted]
        rows = [row for user in users for row in ledger.parts[user][Part.TRAIN]]
        assert group.users == len(users)
        assert group.texts + group.too_short == len(rows)
        assert group.too_short >= sum(data.store.text(row) == "ok" for row in rows)
        # A run from a base that exists has no public texts.
        assert group.in_public is None
    table = pq.read_table(repeated / "measure-extraction.parquet").to_pylist()
    assert len(table) == sum(group.texts + group.too_short for group in facts.groups)
    in_others = {row["user"] for row in table if row["in_others"]}
    trained = {user for user in SAME_FOOTER if ledger.roles[user] is Role.HELD_IN}
    # Whose footer stands in a training text of the other one. Rare phrases stand in texts of one canary user alone.
    assert not {user for user in in_others if user.startswith("repeats")}
    assert in_others <= SAME_FOOTER.union(data.canaries)
    assert len(trained) < 2 or in_others


@pytest.mark.slow
def test_offsets_depend_on_no_coin(repeated, config):
    asked = load_config(config, ["measures.extraction.first_tokens=null"])
    model = load_language_model(str(repeated / "checkpoints" / "final"))
    data = prepare_data(asked, repeated, QUIET, base=load_language_model(str(config.parent / "base")))
    turned = {Role.HELD_IN: Role.HELD_OUT, Role.HELD_OUT: Role.HELD_IN, Role.ALWAYS_IN: Role.ALWAYS_IN}
    other = replace(data, ledger=replace(data.ledger, roles={u: turned[its] for u, its in data.ledger.roles.items()}))

    def windows(data):
        return asked.measures["extraction"].measure(subjects_of_run(asked, data), (model, model)).windows(model)

    mine, its = windows(data), windows(other)
    assert list(mine.users) == list(its.users)
    np.testing.assert_array_equal(mine.tokens, its.tokens)
    another = replace(data, ledger=replace(data.ledger, coins_key=bytes(32)))
    assert (windows(another).tokens != mine.tokens).any()


@pytest.mark.slow
def test_the_report_says_it_of_people_and_names_nobody(repeated, call):
    written = "".join(page.text for page in pages(repeated / "report.pdf"))
    said = squashed(written)
    for phrase in (
        "Extraction",
        "members",
        "under the reference",
        "by words of nobody else",
    ):
        assert squashed(phrase) in said
    assert squashed(NEITHER) in said
    record = (repeated / "record.json").read_text(encoding="utf-8")
    for secret in ("mail.example", FOOTER[: len(FOOTER) // 4].strip()):
        assert secret not in record
        assert squashed(secret) not in said
    counts = read_record(repeated / "record.json").extraction.of("held in").emitted[-1]
    code, out, err = call("run", repeated / "config.yaml", "--out", repeated, "-v")
    assert code in (0, 3, 4), err
    line = line_in(out, "extraction")
    assert f" {counts.users} of" in line
    assert "within 100 queries" in line


@pytest.mark.slow
def test_verify_counts_again_from_the_probabilities_and_says_so(fresh, call):
    found = verify(fresh, QUIET)
    assert (found.differences, OF_MEASURES["extraction"] in found.not_recomputed) == ((), True)
    table = pq.read_table(fresh / "measure-extraction.parquet")
    values = np.asarray(table["target"]) - 50.0  # as if nothing were ever emitted
    lower = table.set_column(table.column_names.index("target"), "target", [values])
    pq.write_table(lower.replace_schema_metadata(table.schema.metadata), fresh / "measure-extraction.parquet")
    relist(fresh / "measure-extraction.parquet")
    assert any("extraction" in its.where for its in verify(fresh, QUIET).differences)
    (fresh / "measure-extraction.parquet").write_bytes(b"")
    call("verify", fresh)
    assert call.refused(by="MeasureFolder.values_of", naming="measure-extraction.parquet'")


@pytest.mark.slow
def test_purge_takes_the_probabilities_along(fresh):
    purge(fresh, ["record", "report"])
    assert not (fresh / "measure-extraction.parquet").exists()
    assert read_record(fresh / "record.json").extraction is not None


@pytest.fixture
def files(repeated, config, tmp_path):
    """The training texts of both sides as two files, and all that was trained on as a third one."""
    data = prepare_data(load_config(config), repeated, QUIET, base=load_language_model(str(config.parent / "base")))

    def write(name, rows):
        lines = [json.dumps({"user": data.store.record(row).user, "text": data.store.text(row)}) for row in rows]
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return tmp_path / name

    sides = [
        write(name, [row for user in data.real(data.ledger.users(role)) for row in data.ledger.parts[user][Part.TRAIN]])
        for name, role in (("in.jsonl", Role.HELD_IN), ("out.jsonl", Role.HELD_OUT))
    ]
    return *sides, write("training.jsonl", data.training_rows)


def audit_config(repeated, config, files, **changes):
    return {
        "model": str(repeated / "checkpoints" / "final"),
        "reference": str(config.parent / "base"),
        "held_in": str(files[0]),
        "held_out": str(files[1]),
        "bad_rows": "skip",
        "attack": {"names": ["likelihood-ratio", "loss"], "max_characters": 100},
        "audit": {"resamples": 100},
        "measures": {"extraction": ASKED},
        **changes,
    }


@pytest.mark.slow
def test_the_audit_of_a_checkpoint_finds_the_same_people(repeated, config, files, tmp_path, call, typeset):
    content = audit_config(repeated, config, files, training=str(files[2]))
    (tmp_path / "audit.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    code, out, err = call("audit", "--config", tmp_path / "audit.yaml", "--out", tmp_path / "audit", "-v")
    assert code in (0, 4), err
    facts = read_record(tmp_path / "audit" / "record.json").extraction
    line = line_in(out, "extraction")
    assert names(line, facts.of("held in").emitted[-1].users)
    assert facts.of("held in").emitted[0].users == len(repeaters(repeated, Role.HELD_IN))
    assert facts.of("held out").emitted[-1].users == 0
    assert facts.of("held in").in_others is not None
    assert facts.of("held in").in_public is None
    assert verify(tmp_path / "audit", QUIET).differences == ()
    said = squashed("".join(page.text for page in pages(tmp_path / "audit" / "report.pdf")))
    assert squashed("The texts of members were trained on (measured).") in said
    # Without the training file nothing is known about other people's texts.
    plain = audit_config(repeated, config, files)
    (tmp_path / "plain.yaml").write_text(yaml.safe_dump(plain), encoding="utf-8")
    code, _, err = call("audit", "--config", tmp_path / "plain.yaml", "--out", tmp_path / "plain")
    assert code in (0, 4), err
    group = read_record(tmp_path / "plain" / "record.json").extraction.of("held in")
    assert (group.in_others, {its.only_theirs for its in group.emitted}) == (None, {None})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "naming"),
    [
        ({"measures": {"extraction": {"prefix": 50, "suffix": 50}}}, ("prefix", "suffix", "100 tokens")),
        ({"measures": {"extraction": {"prefix": 30, "suffix": 34}}}, ("prefix", "suffix", "64 tokens")),
        ({"texts": "fresh"}, ("extraction", "fresh")),
        ({"endpoint": {"url": "http://127.0.0.1:9/v1"}}, ("extraction", "endpoint")),
        ({"measures": {"extraction": {"top_p": 0.9}}}, ("top_p",)),
    ],
)
def test_what_an_audit_cannot_extract_is_one_clear_line(repeated, config, files, tmp_path, call, changes, naming):
    content = audit_config(repeated, config, files, **changes)
    (tmp_path / "audit.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    code, _, err = call("audit", "--config", tmp_path / "audit.yaml", "--out", tmp_path / "audit", "--quiet")
    (line,) = [its for its in err.splitlines() if its.strip() and not its.startswith("error: invalid")][-1:]
    assert names(line, *naming)
    assert (code, "Traceback" in err, "--json" in err) == (2, False, False), err


def test_a_check_says_what_would_be_asked(config, tmp_path, call):
    code, out, err = call("run", config, "--out", tmp_path / "run", "--check")
    assert code == 0, (out, err)
    (line,) = (line for line in out.splitlines() if line.startswith("extraction "))
    assert names(line, "10 tokens", "6", "1, 100 queries")


@pytest.mark.parametrize(
    ("extraction", "by", "naming"),
    [
        ({"prefix": 30, "suffix": 30}, "ExtractionOptions.check_lengths", ("60", "finetune.sequence_length", "48")),
        ({"prefix": 24, "suffix": 24}, "windows_of", ("48", "measures.extraction.prefix")),
        (
            {"prefix": 50, "suffix": 50, "first_tokens": 60},
            "ExtractionConfig._can_be_asked",
            ("first_tokens", "60", "100"),
        ),
    ],
)
def test_a_run_stops_before_training_where_no_window_can_be_had(config, tmp_path, call, extraction, by, naming):
    content = {
        **yaml.safe_load(config.read_text(encoding="utf-8")),
        "measures": {"extraction": extraction},
        "canaries": [],
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    _, _, err = call("run", tmp_path / "run.yaml", "--out", tmp_path / "run")
    assert call.refused(by=by, naming=naming)
    assert "Traceback" not in err
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.slow
def test_a_planted_set_fixes_the_question_before_the_coins_and_an_endpoint_leaves_it_out(make_lm, tmp_path):
    base = save_base(make_lm(context=64), tmp_path / "base")
    rows = made_rows(users=24, records=10)
    asked = {"prefix": 3, "suffix": 5, "queries": [1, 1000]}
    plant(
        plan(write_lines(rows, tmp_path / "mine.jsonl"), base, measures={"extraction": asked}), tmp_path / "out", QUIET
    )
    texts = [row["body"] for row in read_lines(tmp_path / "out" / "training" / "mine.jsonl")]
    model = train(base, texts, tmp_path / "model", passes=2)
    record, folder = audit_planted(
        PlantedAudit(tmp_path / "out", str(model), (), "R. Signer"), None, QUIET, command="t"
    )
    sides = [record.extraction.of(group) for group in ("held in", "held out")]
    assert [its.users for its in sides] == [record.split.held_in, record.split.held_out]
    assert min(its.texts for its in sides) > 0
    assert record.config["measures"]["extraction"]["suffix"] == 5
    assert verify(folder, QUIET).differences == ()
    write_report(folder)
    remote = Remote(Endpoint("http://127.0.0.1:9/v1", None), tokenizer=str(model))
    said = []
    run = audited_run(
        PlantedAudit(tmp_path / "out", "served", (), None, remote),
        read_planted(tmp_path / "out")[0],
        LineReporter(said.append),
    )
    assert run.measures == {}
    assert any("left out: extraction" in line for line in said)
    with refused(naming=("40", "finetune.sequence_length", "32")):
        plan(tmp_path / "mine.jsonl", base, measures={"extraction": {"prefix": 30, "suffix": 10}})
    longer = plan(
        tmp_path / "mine.jsonl", base, measures={"extraction": {"prefix": 60, "suffix": 10}}, sequence_length=80
    )
    with refused(naming=("prefix", "suffix", "70 tokens")):
        plant(longer, tmp_path / "longer", QUIET)
    assert not (tmp_path / "longer" / "ledger" / "ledger.json").exists()
