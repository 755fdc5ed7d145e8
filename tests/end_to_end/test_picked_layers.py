"""A private run whose adapters are on layers that public users picked: what it trains, records, assumes and refuses."""

import json
from collections import Counter

import pytest
import yaml

import heldin
from heldin.base.artefacts import read_document, write_document
from heldin.base.progress import LineReporter
from heldin.corpus.store import texts_of
from heldin.defenses.plan_file import read_plan
from heldin.jobs.verify import verify
from heldin.record.document import read_record
from heldin.reports.findings import warn
from heldin.reports.record_report import list_facts
from heldin.stages.run_config import parse_config
from heldin.stages.sides.corpus import read_corpus
from heldin.stages.sides.public import saliency_rows
from heldin.stages.train import layers
from heldin.stages.train.layers import LAYERS, with_picked_layers
from heldin.stages.train.models import base_model
from heldin.stages.train.plan import assumptions
from heldin.words.guarantee import Assumption
from tests.conftest import SMALL
from tests.refusals import names, refused

QUIET = LineReporter(lambda line: None)
PRIVATE = {"kind": "uls", "population": 15, "cohort": 8, "steps": 12, "delta": 1e-3, "target_epsilon": 8}
LORA = {"rank": 2, "targets": "auto", "picked_share": 0.34}


def content(saliency=None, **changes):
    model = {**SMALL["model"], "saliency": saliency or {}}
    finetune = {**SMALL["finetune"], "lora": LORA, "select": "last", "patience": None}
    del finetune["epochs"], finetune["batch_size"]
    corpus = {**SMALL["corpus"], "users": {"min_records": 8, "fraction": 0.5}}
    return {**SMALL, "corpus": corpus, "model": model, "finetune": finetune, "defense": PRIVATE, **changes}


@pytest.fixture(scope="module")
def folder(make_once):
    def build(to):
        (to / "config.yaml").write_text(yaml.safe_dump(content()), encoding="utf-8")
        heldin.run(to / "config.yaml", out=to / "run", quiet=True)

    return make_once("picked-layers", build) / "run"


def test_adapters_are_on_the_picked_layers_only(folder):
    picked = read_record(folder / "record.json").training.picked
    assert (picked.candidates, len(picked.layers)) == (6, 2)
    adapter = json.loads((folder / "checkpoints" / "final" / "adapter" / "adapter_config.json").read_text("utf-8"))
    assert sorted(adapter["target_modules"]) == sorted(picked.layers)
    kept = read_document(folder / LAYERS)
    least = min(kept["saliency"][layer] for layer in picked.layers)
    assert all(kept["saliency"][name] <= least for name in kept["saliency"] if name not in picked.layers)


def test_the_guarantee_states_whose_gradients_picked_them(folder):
    assert Assumption.LAYERS_OF_PUBLIC_USERS() in read_plan(folder / "plan.json").assumptions
    assert str(Assumption.LAYERS_OF_PUBLIC_USERS()) in str(read_record(folder / "record.json").training.promise)
    source = {"source": {"kind": "synthetic", "parameters": {"seed": 77, "users": 12, "min_records": 2}}}
    of_source = assumptions(parse_config(content(source), "test"))
    assert Assumption.LAYERS_UNSEEN() in of_source


def test_the_record_is_verified_and_the_report_names_the_layers(folder):
    assert verify(folder, QUIET).differences == ()
    # All users who pick also pre-train here, so each of them counts once.
    config = parse_config(content(), "test")
    assert read_record(folder / "record.json").corpus.public_users == read_corpus(config, QUIET).public.users
    record = read_record(folder / "record.json")
    (row,) = [row for row in list_facts(record).pairs if row[0].startswith("adapters")]
    assert names(" ".join(row), *record.training.picked.layers, record.training.picked.users, 6)


def test_only_public_users_pick_and_a_choice_is_kept(tmp_path, monkeypatch):
    config, lines = parse_config(content(), "test"), []
    corpus = read_corpus(config, QUIET)
    audited = set(corpus.audited.users)
    per_user = Counter(corpus.saliency.store.record(row).user for row in corpus.saliency.rows)
    assert len(per_user) == corpus.saliency.users
    assert not set(per_user) & audited
    assert max(per_user.values()) == 8
    base, file = base_model(config, corpus, QUIET)[1], tmp_path / "layers.json"

    def pick(config):
        return with_picked_layers(config, read_corpus(config, QUIET), base, LineReporter(lines.append), file)

    first = pick(config)
    key = read_document(file)["key"]
    # A kept choice is not measured again: a GPU would not repeat the last digits.
    with monkeypatch.context() as patch:
        patch.setattr(layers, "layer_saliency", lambda *a, **k: pytest.fail("measured twice"))
        assert pick(config) == first
    # What is kept counts, as where another machine would pick otherwise.
    other = {**read_document(file), "layers": ["transformer.h.0.mlp.c_fc"]}
    write_document(file, other)
    assert pick(config).lora.targets == ("transformer.h.0.mlp.c_fc",)
    assert first.lora.targets != ("transformer.h.0.mlp.c_fc",)
    # Other public texts are another choice.
    pick(parse_config(content({"max_records_per_user": 1}), "test"))
    assert read_document(file)["key"] != key


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {"source": {"kind": "jsonl", "path": str(path)}}


def test_people_of_the_run_pick_no_layers_under_their_own_name(tmp_path):
    corpus = read_corpus(parse_config(content(), "test"), QUIET)
    user = corpus.audited.users[0]
    own = texts_of(corpus.store, corpus.store.rows(user))
    rows = [{"user": f"p{i}", "text": f"a public text, number {i}"} for i in range(4)]
    shared = write(tmp_path / "shared.jsonl", [*rows, {"user": user, "text": own[0]}])
    with refused(by="_require_others", naming=("model.saliency", "1 user")):
        read_corpus(parse_config(content(shared), "test"), QUIET)
    # A name alone may be another person's; the record counts texts that are public as well as audited.
    named = write(tmp_path / "named.jsonl", [*rows, {"user": user, "text": "another text"}])
    assert read_corpus(parse_config(content(named), "test"), QUIET).saliency.users == 5


def test_a_renamed_copy_of_private_texts_is_counted(tmp_path, call):
    corpus = read_corpus(parse_config(content(), "test"), QUIET)
    user = corpus.audited.users[0]
    copied = write(
        tmp_path / "copy.jsonl", [{"user": "x", "text": t} for t in texts_of(corpus.store, corpus.store.rows(user))]
    )
    changed = content(copied, finetune={**content()["finetune"], "evaluations": 1})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(changed), encoding="utf-8")
    record = heldin.run(tmp_path / "config.yaml", out=tmp_path / "run", quiet=True).record
    # Of this user, as many as model.saliency reads.
    assert record.split.overlaps.audited_texts_in_public.count == 8
    (warning,) = [line for line in warn(record) if "public users" in line]
    assert names(warning, 8, "picked the trained layers")
    # And this user is no user whom the guarantee leaves out unsaid.
    assert record.corpus.public_users == corpus.public.users + 1


def test_what_cannot_pick_is_refused_before_training(tmp_path):
    chats = write(tmp_path / "chats.jsonl", [{"user": "a", "messages": [{"role": "user", "content": "hello"}]}] * 3)
    with refused(by=saliency_rows, naming="model.saliency.source"):
        read_corpus(parse_config(content(chats), "test"), QUIET)
    nobody = {"users": {"include": ["nobody"]}}
    with refused(by=saliency_rows, naming="model.saliency"):
        read_corpus(parse_config(content(nobody), "test"), QUIET)
    without = content()
    del without["model"]["saliency"]
    with refused(by="RunConfig._somebody_picks", naming=("finetune.lora.targets", "model.saliency")):
        parse_config(without, "test")
    named = content(finetune={**content()["finetune"], "lora": {"rank": 2}})
    with refused(by="RunConfig._somebody_picks", naming=("finetune.lora.targets", "model.saliency")):
        parse_config(named, "test")


def test_a_check_counts_every_layer_before_they_are_picked(tmp_path, call):
    banded = {**PRIVATE, "kind": "banded", "bands": 2, "cohort": 4}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content(defense=banded)), encoding="utf-8")
    code, out, err = call("run", tmp_path / "config.yaml", "--check", "--gpu-memory", "16", "--out", tmp_path / "out")
    assert code == 0, err
    # Of each linear layer of width a x b, 2 (a + b) numbers.
    assert names(out, f"at most {2 * (4 * 2 * 32 + 2 * (32 + 128)):,}")


@pytest.mark.parametrize("rows", ["chats", "pairs"])
def test_layers_are_picked_by_the_loss_of_the_training(rows, tmp_path):
    """Of chats only the assistant's turns have loss, and pairs have a loss of their own."""
    source = {"kind": "synthetic", "rows": rows, "parameters": SMALL["corpus"]["source"]["parameters"]}
    public = {"source": {**source, "parameters": {**source["parameters"], "seed": 91, "users": 12}}}
    users = {"min_records": 8, "fraction": 0.5}
    reporter, saliency = LineReporter(lambda line: None), {}
    for name, asked in (("corpus", {}), ("file", public)):
        config = parse_config(content(asked, corpus={"source": source, "users": users}), "test")
        corpus = read_corpus(config, QUIET)
        base = base_model(config, corpus, QUIET)[1]
        with_picked_layers(config, corpus, base, reporter, tmp_path / f"{name}.json")
        saliency[name] = read_document(tmp_path / f"{name}.json")["saliency"]
        assert max(saliency[name].values()) > 0
    assert saliency["corpus"] != saliency["file"]
    # All turns would give another gradient.
    if rows == "chats":
        every = {**content()["finetune"], "loss_on": "all"}
        config = parse_config(content(public, corpus={"source": source, "users": users}, finetune=every), "test")
        corpus = read_corpus(config, QUIET)
        base = base_model(config, corpus, QUIET)[1]
        with_picked_layers(config, corpus, base, reporter, tmp_path / "all.json")
        assert read_document(tmp_path / "all.json")["saliency"] != saliency["file"]
