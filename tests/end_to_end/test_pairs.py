"""Preference pairs from the file to the report: a run, an audit of files, its verification, and what is refused."""

import json
from dataclasses import replace

import pytest
import torch
import yaml

import heldin
from heldin.attacks.protocol import ANSWER
from heldin.corpus.made_up.chats import MadeUpRows, made_up_rows
from heldin.corpus.made_up.synthetic import SyntheticCorpus
from heldin.finetune.batches import collate
from heldin.jobs.check.memory_forecast import recipe_of_rows, step_of
from heldin.models.opening import load_language_model
from heldin.record.document import read_record
from heldin.stages.measures.tables import read_losses, read_scores
from heldin.stages.run_config import RunConfig, parse_config
from heldin.stages.starting.files import starting_file
from heldin.words.page_one import LeftOut
from tests.conftest import SMALL
from tests.refusals import names

ROWS = list(made_up_rows(SyntheticCorpus(40, 9, 8, distinctiveness=0.9, seed=4), MadeUpRows.PAIRS))
PAIRS = {
    **SMALL,
    "corpus": {
        "source": {"kind": "synthetic", "rows": "pairs", "parameters": SMALL["corpus"]["source"]["parameters"]},
        "users": SMALL["corpus"]["users"],
    },
    "canaries": [{"kind": "rare_phrase", "users": 4, "documents": [3]}],
}


def _started(folder, name, **changes):
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**PAIRS, **changes}), encoding="utf-8")
    heldin.run(path, out=folder / name, quiet=True)
    return folder / name


@pytest.fixture(scope="module")
def run(make_once):
    return make_once("a run on pairs", lambda folder: _started(folder, "run")) / "run"


def test_the_record_says_what_was_compared(run, call):
    record = read_record(run / "record.json")
    turns, preference = record.corpus.turns, record.training.preference
    assert (turns.format, turns.column, turns.loss, turns.attack) == ("preference", "chosen", *["completion"] * 2)
    assert (preference.objective, preference.beta, preference.reference) == ("dpo", 0.1, True)
    (left,) = record.left_out
    assert left.states(LeftOut.PAIRS)
    assert call("verify", run)[0] == 0
    assert call("report", run, "--html")[0] == 0
    assert "dpo, beta 0.1" in (run / "report.html").read_text(encoding="utf-8")


def test_the_answers_are_reported_beside_the_margin_and_add_up_to_it(run):
    statistics = [s for s in read_scores(run) if s.attack == "likelihood-ratio"]
    by_setting = {}
    for s in statistics:
        by_setting.setdefault(s.dial.setting if s.dial else "margin", {})[s.user, s.text] = s.value
        assert s.dial is None or s.dial.name == ANSWER
    assert set(by_setting) == {"margin", "chosen", "rejected"}
    for key, margin in by_setting["margin"].items():
        assert margin == pytest.approx(by_setting["chosen"][key] - by_setting["rejected"][key], abs=1e-3)


def test_utility_is_the_loss_of_pairs(run):
    losses, utility = read_losses(run), read_record(run / "record.json").utility
    assert all(user.base_loss == pytest.approx(0.6931, abs=1e-3) for user in losses.values())
    assert all(0 <= user.preferred <= 1 for user in losses.values())
    if utility is not None:
        assert (utility.per, utility.perplexity) == ("pair", None)
        assert 0 <= utility.preferred.value <= 1


def test_the_reference_is_the_base_and_is_kept_apart(run):
    kept = run / "checkpoints" / "reference"
    assert {path.name for path in kept.iterdir()} == {"about.txt", "artefacts.json", "reference.bin"}
    assert (kept / "reference.bin").stat().st_mode & 0o077 == 0


def test_canary_pairs_have_their_mark_in_the_chosen_answer(run):
    import pyarrow.parquet as pq

    rows = pq.read_table(run / "ledger" / "canaries" / "records.parquet").to_pylist()
    users = pq.read_table(run / "ledger" / "canaries" / "users.parquet").to_pylist()
    marks = {row["user"]: row["mark"] for row in users}
    assert rows
    for row in rows:
        places = row["layout"]
        assert marks[row["user"]] in row["text"][places["completion"] : places["second"]]
        assert marks[row["user"]] not in row["text"][places["second"] :]


@pytest.mark.parametrize("objective", ["dpo", "orpo"])
def test_a_private_run_has_the_same_guarantee_as_on_chats(call, tmp_path, objective):
    defense = {"kind": "uls", "target_epsilon": 8.0, "population": 40, "cohort": 10, "steps": 5, "clip_norm": 0.5}
    finetune = {**SMALL["finetune"], "objective": objective, "beta": 0.5, "select": "last", "patience": None}
    epsilons = []
    for name, rows in (("pairs", "pairs"), ("chats", "chats")):
        source = {**PAIRS["corpus"]["source"], "rows": rows}
        users = {"min_records": 8, "fraction": 0.5}
        own = finetune if rows == "pairs" else {k: v for k, v in finetune.items() if k not in ("objective", "beta")}
        folder = _started(
            tmp_path, name, defense=defense, finetune=own, canaries=[], corpus={"source": source, "users": users}
        )
        epsilons.append(read_record(folder / "record.json").training.epsilon)
    assert epsilons[0] == epsilons[1] is not None
    assert call("verify", tmp_path / "pairs")[0] == 0


@pytest.fixture(scope="module")
def files(make_once, run):
    """Two files of pairs."""

    def build(folder):
        users = sorted({row["user"] for row in ROWS})
        for name, some in (("in", users[::2]), ("out", users[1::2])):
            lines = [json.dumps({k: v for k, v in r.items() if k != "id"}) for r in ROWS if r["user"] in some]
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

    return make_once("files of pairs", build)


def _base_of(run):
    return yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["model"].get("base")


def test_an_audit_of_pairs_is_verified_without_a_model(call, files, run, tmp_path):
    base = load_language_model(str(run / "checkpoints" / "final"))
    with torch.no_grad():
        for parameter in base.model.parameters():
            parameter.mul_(0.99)
    base.model.save_pretrained(tmp_path / "base")
    base.tokenizer.save_pretrained(tmp_path / "base")
    models = ("--model", run / "checkpoints" / "final", "--reference", tmp_path / "base")
    sides = ("--held-in", files / "in.jsonl", "--held-out", files / "out.jsonl")
    code, _, err = call("audit", *models, *sides, "--out", tmp_path / "audit", "--json")
    assert code == 0, err
    assert names(err, "preference", "'chosen'")
    record = read_record(tmp_path / "audit" / "record.json")
    assert record.corpus.turns.format == "preference"
    assert record.gain is None or record.gain.per == "pair"
    assert call("verify", tmp_path / "audit")[0] == 0
    code, _, err = call("audit", *models, *sides, "--out", tmp_path / "zlib", "--attack", "zlib")
    assert code == 2


def test_the_memory_of_a_step_is_that_of_two_rows_a_pair():
    config = parse_config(PAIRS, "pairs.yaml")
    assert recipe_of_rows(config).objective == "dpo"
    assert step_of(config) is not None
    chats = {**PAIRS, "corpus": {**PAIRS["corpus"], "source": {**PAIRS["corpus"]["source"], "rows": "chats"}}}
    assert recipe_of_rows(parse_config(chats, "chats.yaml")).objective is None


WRONG = {
    "an objective of pairs for chats": ({"rows": "chats"}, {"objective": "dpo"}, ("finetune.objective", "messages")),
    "beta for mails": ({"rows": "mails"}, {"beta": 0.2}, ("finetune.beta", "text")),
    "smoothing of orpo": (
        {"rows": "pairs"},
        {"objective": "orpo", "label_smoothing": 0.1},
        ("finetune.label_smoothing", "orpo"),
    ),
    "a loss on all turns": ({"rows": "pairs"}, {"loss_on": "all"}, ("finetune.loss_on", "pairs")),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_pairs_do_not_take_is_one_line(call, tmp_path, case):
    source, finetune, told = WRONG[case]
    corpus = {**PAIRS["corpus"], "source": {**PAIRS["corpus"]["source"], **source}}
    content = {**PAIRS, "canaries": [], "corpus": corpus, "finetune": {**SMALL["finetune"], **finetune}}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    code, _, err = call("run", tmp_path / "wrong.yaml", "--out", tmp_path / "run")
    assert code == 2
    assert names(err.strip().splitlines()[-1], *told)


def test_marks_are_not_put_into_users_pairs(call, tmp_path):
    content = {**PAIRS, "canaries": [{"kind": "substring", "users": 2, "lengths": [4], "documents": [2]}]}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    code, _, err = call("run", tmp_path / "wrong.yaml", "--out", tmp_path / "run")
    assert code == 2
    assert names(err.strip().splitlines()[-1], "substring", "pairs")


def test_a_batch_of_a_run_is_two_rows_a_pair(run):
    import numpy as np

    from heldin.finetune.preferences import PreferenceRecords
    from heldin.finetune.token_store import TokenStore
    from heldin.models.preference import DirectPreference

    kept = TokenStore(run / "checkpoints" / "tokens")
    assert kept.paired
    values = np.fromfile(run / "checkpoints" / "reference" / "reference.bin", dtype=np.float32).reshape(-1, 2)
    records = PreferenceRecords(kept, DirectPreference(), values)
    batch = collate(records[:3], torch.device("cpu"))
    assert len(batch) == 6
    assert batch.reference.tolist() == values[:3].ravel().tolist()
    assert replace(records[0], reference=(0.0, 0.0)).reference == (0.0, 0.0)


@pytest.mark.slow  # a run of each defense
@pytest.mark.parametrize(
    "kind", ["clip", "els", "example", "filter", "group", "uedp", "user-entity", "uls", "banded", "local updates"]
)
def test_every_defense_trains_with_the_loss_of_pairs(call, tmp_path, kind):
    start = starting_file("run", "uls" if kind == "local updates" else kind, RunConfig)
    (tmp_path / "start.yaml").write_text(start, encoding="utf-8")
    keys = {
        "corpus.source": {"rows": "pairs", "parameters": {"users": 60}},
        "model.pretrain": {"shape": {"context": 96}, "recipe": {"sequence_length": 96}},
        "finetune": {"sequence_length": 96},
    }
    changed = [f"{head}.{key}={json.dumps(value)}" for head, inner in keys.items() for key, value in _flat(inner)]
    changed += ['defense.local={"learning_rate": 0.01, "batch_size": 2}'] if kind == "local updates" else []
    options = [word for change in changed for word in ("--set", change)]
    code, _, err = call("run", tmp_path / "start.yaml", "--out", tmp_path / "run", *options)
    assert code == 0, err
    if "halted after" in err:  # the filter may, and then leaves no model
        return
    states = (tmp_path / "run" / "checkpoints" / "resume").rglob("state.json")
    (point, *_) = json.loads(next(states).read_text(encoding="utf-8"))["state"]["history"]
    # As texts, both answers would cost some nats for each token; of pairs a base model guesses, at log 2.
    assert point["train_loss"] < 2.0
    assert point["held_in_loss"] < 3.0


def _flat(keys, before=""):
    """Dotted keys and values of nested ones."""
    for key, value in keys.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
