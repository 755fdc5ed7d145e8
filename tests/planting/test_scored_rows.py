"""Which parts of a row are scored under ``score``, and that they are what trainers count the loss on."""

import importlib.util
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heldin.base.progress import LineReporter
from heldin.corpus.chat.template import ChatTemplate
from heldin.corpus.forms import Chat, Completion
from heldin.corpus.split import Part
from heldin.models.logprobs import score_texts
from heldin.models.opening import load_language_model
from heldin.models.tokens import tokens_of
from heldin.planting.audit import audit_planted
from heldin.planting.plant import plant
from heldin.planting.plant_data import drawn_data
from heldin.planting.target import PlantedAudit
from heldin.words.split import ScoredPart
from tests.planted_sets import COLUMNS, base, plan, read_lines, rows, train, write_lines
from tests.refusals import refused

__all__ = ["base", "rows"]  # fixtures

QUIET = LineReporter(lambda line: None)
PLAIN = "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '\n' }}{% endfor %}"
ASKING = PLAIN + "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
MARKED = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|> ' }}{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] }}{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}{{ '\n' }}{% endfor %}"
)
FORGETS = "{% for m in messages %}{% if loop.last or m['role'] == 'user' %}{{ m['content'] }}{% endif %}{% endfor %}"


def _said(*turns):
    return [{"role": role, "content": content} for role, content in turns]


TALK = _said(("user", "how?"), ("assistant", "so, and so."), ("user", "why?"), ("assistant", "because"))
needs_trl = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL (the extra 'trainers') is missing")


def _chat(template, role="assistant"):
    return Chat(("m",), ChatTemplate(template, {}), counted=role)


def _pieces(form, row):
    document = form.document(row)
    assert document.text == form.of(row)
    return [document.text[begin:end] for begin, end in document.spans]


def test_a_completion_is_what_follows_the_prompt():
    row = {"p": "asked: ", "c": "answered"}
    assert _pieces(Completion("p", "c", alone=True), row) == ["answered"]
    assert _pieces(Completion("p", "c"), row) == ["asked: answered"]
    for most, empty in [(7, row), (100, {"p": "asked", "c": ""})]:
        with refused(by="_read", naming=("'c'", most), kind=ValueError):
            Completion("p", "c", alone=True, most=most).document(empty)


@pytest.mark.parametrize(
    ("template", "role", "pieces"),
    [
        (PLAIN, "assistant", ["so, and so.\n", "because\n"]),
        (ASKING, "assistant", ["so, and so.\n", "because\n"]),
        (ASKING, "user", ["how?\n", "why?\n"]),
    ],
)
def test_turns_of_a_role_begin_where_the_template_lets_it_begin(template, role, pieces):
    assert _pieces(_chat(template, role), {"m": TALK}) == pieces


def test_marked_turns_are_those_that_the_template_marks():
    assert _pieces(_chat(MARKED), {"m": TALK}) == ["so, and so.", "because"]


def test_a_row_without_a_turn_of_the_role_and_a_template_that_forgets_turns_are_refused():
    with refused(by="_read", naming=("'tool'", "'m'"), kind=ValueError):
        _chat(ASKING, "tool").document({"m": TALK})
    with refused(by="ChatTemplate._require_written", naming="'assistant'", kind=ValueError):
        _chat(FORGETS).document({"m": TALK})


@pytest.mark.parametrize(
    ("changes", "naming"),
    [
        ({"score": "completion"}, ("columns.prompt", "columns.completion")),
        ({"score": "turns"}, "columns.messages"),
        ({"role": "user"}, ("role", "score: turns")),
    ],
)
def test_parts_that_the_columns_do_not_have_are_refused(changes, naming, tmp_path):
    with refused(by="PlantConfig._columns_have_what_is_scored", naming=naming):
        plan(tmp_path / "mine.jsonl", "base", **changes)


def _labels_of_trl(lm, dataset, folder, **settings):
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    args = SFTConfig(str(folder), bf16=False, use_cpu=True, report_to=[], max_length=512, **settings)
    trainer = SFTTrainer(
        model=lm.model, args=args, train_dataset=Dataset.from_list(dataset), processing_class=lm.tokenizer
    )
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(len(dataset))])
    rows = zip(batch["input_ids"].tolist(), batch["labels"].tolist(), batch["attention_mask"].tolist(), strict=True)
    return [[(token, label != -100) for token, label, seen in zip(*its, strict=True) if seen] for its in rows]


def _ours(lm, form, rows):
    found = tokens_of(lm.tokenizer, [form.document(row) for row in rows])
    return [list(zip(tokens.ids, tokens.counted.tolist(), strict=True)) for tokens in found]


def _without_end(row, end):
    return row[:-1] if row[-1][0] == end else row


@needs_trl
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of TRL's own default settings
@pytest.mark.parametrize("between", ["", " ", "\n", ": "])
def test_a_completion_has_the_tokens_that_trl_counts_the_loss_on(between, make_lm, tmp_path):
    lm = make_lm()
    lm.tokenizer.pad_token = lm.tokenizer.eos_token
    rows = [
        {"prompt": f"the river opens{between}", "completion": answer}
        for answer in ("the letter on day 7.", " a b c", "x", "äß 语言 and more")
    ]
    theirs = _labels_of_trl(lm, rows, tmp_path, completion_only_loss=True)
    ours = _ours(lm, Completion("prompt", "completion", alone=True), rows)
    # TRL counts the end token too, which the attack does not score.
    assert [_without_end(row, lm.tokenizer.eos_token_id) for row in theirs] == ours
    assert any(not counted for row in ours for _, counted in row)


@needs_trl
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of TRL's own default settings
def test_marked_turns_have_the_tokens_that_trl_counts_the_loss_on(make_lm, tmp_path):
    lm = make_lm()
    lm.tokenizer.pad_token = lm.tokenizer.eos_token
    lm.tokenizer.chat_template = MARKED
    try:
        answers = ("the letter on day 7.", "a b c", "x", "äß 语言, and more")
        rows = [{"messages": [*TALK, *_said(("user", "what else?"), ("assistant", its))]} for its in answers]
        theirs = _labels_of_trl(lm, rows, tmp_path, assistant_only_loss=True)
        template = ChatTemplate.of(lm.tokenizer, "base")
        assert theirs == _ours(lm, Chat(("messages",), template, counted="assistant"), rows)
    finally:
        lm.tokenizer.chat_template = None


def _apart(rows):
    its = []
    for row in rows:
        prompt, answer = row["body"].split(" ", 1)
        rest = {name: value for name, value in row.items() if name != "body"}
        its.append({**rest, "prompt": prompt, "answer": f" {answer}"})
    return its


@pytest.fixture
def planted(rows, base, tmp_path):
    lines = write_lines(_apart(rows), tmp_path / "mine.jsonl")
    columns = {**COLUMNS, "prompt": "prompt", "completion": "answer"}
    config = plan(lines, base, columns=columns, score="completion")
    manifest = plant(config, tmp_path / "out", QUIET)
    return config, manifest, tmp_path / "out"


@pytest.mark.slow
def test_the_audit_scores_completions_alone(planted, base, tmp_path):
    config, manifest, out = planted
    texts = [row["prompt"] + row["answer"] for row in read_lines(out / "training" / "mine.jsonl")]
    model = train(base, texts, tmp_path / "model", passes=1)
    record, folder = audit_planted(PlantedAudit(out, str(model), (), "R. Signer"), None, QUIET, command="test")
    assert record.scoring_rule.values["tokens"].values["part"].states(ScoredPart.COMPLETION)
    lm = load_language_model(str(model))
    data = drawn_data(config, manifest, out, QUIET, load_language_model(str(base)))
    found: dict[str, list[float]] = {}
    for its in pq.read_table(folder / "scores.parquet").to_pylist():
        if its["attack"] == "loss" and its["dial"] is None:
            found.setdefault(its["user"], []).append(its["statistic"])
    for user in data.ledger.scored_users():
        wanted = []
        for row in data.ledger.parts[user][Part.TRAIN]:
            document = data.store.document(row)
            (scores,) = score_texts(lm, [document.text])
            # By hand: each row's first word, or half of a made-up text, is the prompt.
            (tokens,) = tokens_of(lm.tokenizer, [document])
            assert not tokens.counted[0]
            wanted.append(float(scores.logprobs[tokens.counted].mean(dtype=np.float64)))
        assert len(found[user]) == min(len(wanted), config.attack.training_documents)
        assert all(min(abs(its - one) for one in wanted) < 1e-4 for its in found[user])


def test_what_counts_is_kept_of_every_row_whatever_the_coins(planted):
    config, manifest, out = planted
    data = drawn_data(config, manifest, out, QUIET, load_language_model(config.reference))
    for user in data.store.users:
        for row in data.store.rows(user):
            document = data.store.document(row)
            ((begin, end),) = document.spans
            assert 0 < begin < end == len(document.text)
            if user not in data.canaries:
                assert begin == document.text.index(" ")


@pytest.mark.parametrize("canaries", [True, False])
def test_what_counts_cannot_be_changed_after_the_coins(canaries, rows, base, tmp_path):
    lines, out = write_lines(_apart(rows), tmp_path / "mine.jsonl"), tmp_path / "out"
    columns = {**COLUMNS, "prompt": "prompt", "completion": "answer"}
    alone = {} if canaries else {"canaries": []}
    config = plan(lines, base, columns=columns, score="completion", **alone)
    manifest = plant(config, out, QUIET)
    kept = out / "ledger" / "corpus.parquet"
    table = pq.read_table(kept)
    whole = pa.array([[[0, len(text)]] for text in table["text"].to_pylist()], table["spans"].type)
    changed = table.set_column(table.schema.get_field_index("spans"), "spans", whole)
    about = {b"heldin": pq.read_metadata(kept).metadata[b"heldin"]}
    with pq.ParquetWriter(kept, changed.schema) as writer:
        writer.write_table(changed)
        writer.add_key_value_metadata(about)
    with refused(by="load_canaries" if canaries else "ledger_of_run"):
        drawn_data(config, manifest, out, QUIET, load_language_model(config.reference))


def test_a_row_without_a_completion_is_named_before_any_coin(rows, base, tmp_path):
    apart = _apart(rows)
    apart[4]["answer"] = ""
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in apart), encoding="utf-8")
    columns = {**COLUMNS, "prompt": "prompt", "completion": "answer"}
    with refused(by="TrainingSet.rows", naming=("mine.jsonl", "line 5", "'answer'")):
        plant(plan(tmp_path / "mine.jsonl", base, columns=columns, score="completion"), tmp_path / "out", QUIET)
    assert not (tmp_path / "out" / "ledger" / "ledger.json").exists()


def test_rows_without_a_completion_are_found_once_and_left_out_of_every_pass(rows, base, tmp_path, monkeypatch):
    apart = _apart(rows)
    for number in (4, 40, 41):
        apart[number]["answer"] = ""
    lines = write_lines(apart, tmp_path / "mine.jsonl")
    columns = {**COLUMNS, "prompt": "prompt", "completion": "answer"}
    asked, found = [], Completion.document
    monkeypatch.setattr(Completion, "document", lambda its, row: asked.append(row) or found(its, row))
    split = {"audit_pool": 10}
    config = plan(lines, base, columns=columns, score="completion", bad_rows="skip", split=split, canaries=[])
    manifest = plant(config, tmp_path / "out", QUIET)
    assert manifest.skipped.unusable == 3
    data = drawn_data(config, manifest, tmp_path / "out", QUIET, load_language_model(config.reference))
    # Each once; those without a completion in every pass.
    assert len(apart) <= len(asked) <= len(apart) + 3 * 3
    assert data.store.has_spans
    assert all(row["answer"] for row in read_lines(tmp_path / "out" / "training" / "mine.jsonl"))


def test_canary_users_of_long_rows_are_parted_within_what_is_read(rows, base, tmp_path):
    long = [{**row, "prompt": "asked", "answer": f" {row['body']} " + "more words " * 60} for row in rows]
    lines = write_lines([{k: v for k, v in row.items() if k != "body"} for row in long], tmp_path / "mine.jsonl")
    columns = {**COLUMNS, "prompt": "prompt", "completion": "answer"}
    out = tmp_path / "out"
    config = plan(lines, base, columns=columns, score="completion")
    manifest = plant(config, out, QUIET)
    data = drawn_data(config, manifest, out, QUIET, load_language_model(config.reference))
    made = [data.store.document(row) for user in data.canaries for row in data.store.rows(user)]
    assert max(len(document.text) for document in made) > 2 * config.attack.max_characters
    assert all(document.spans[0][0] <= config.attack.max_characters / 2 for document in made)
