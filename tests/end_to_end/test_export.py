"""What leaves is what was trained, under its own label: anything else is refused with one line, and can be checked."""

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from heldin.defenses.plan_file import read_plan
from heldin.models.reading import quiet_transformers
from heldin.record.document import read_record, write_record
from heldin.words.guarantee import Covers
from tests.made_facts import stated
from tests.refusals import names


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a finished run, to be tampered with."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def _refused(call, run, tmp_path, *words):
    code, _, err = call("export", run, "--out", tmp_path / "public")
    assert code == 2
    assert len(err.splitlines()) == 1
    for word in words:
        assert word in err
    assert not (tmp_path / "public").exists()


def _weights(run, change):
    path = run / "checkpoints" / "final" / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_altered_weights_are_not_exported(call, run, tmp_path):
    def nudge(tensors):
        tensors["transformer.ln_f.bias"] += 1e-3

    _weights(run, nudge)
    _refused(call, run, tmp_path, "is not the model that this run trained and audited (target.fingerprint: the record")


def test_weights_of_another_shape_are_not_exported(call, run, tmp_path):
    def cut(tensors):
        tensors["transformer.ln_f.bias"] = tensors["transformer.ln_f.bias"][:-1].clone()

    _weights(run, cut)
    _refused(call, run, tmp_path, "the weights of", "are incomplete or have another shape")


def test_another_tokenizer_is_not_exported(call, run, tmp_path):
    path = run / "checkpoints" / "final" / "tokenizer_config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, "model_max_length": 7}), encoding="utf-8")
    _refused(call, run, tmp_path, "is not the model that this run trained and audited")


def test_a_sentence_that_the_plan_does_not_give_is_not_exported(call, run, tmp_path):
    record = read_record(run / "record.json")
    training = record.training.model_copy(
        update={"promise": stated("epsilon 0.1, delta 1e-09 per user"), "epsilon": 0.1}
    )
    write_record(record.model_copy(update={"training": training}), run / "record.json")
    _refused(call, run, tmp_path, 'training.promise.code: the record states "made.text"', "verify")


def test_a_plan_of_another_config_is_not_exported(call, run, tmp_path):
    path = run / "config.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("batch_size: 8", "batch_size: 4", 2), encoding="utf-8")
    _refused(call, run, tmp_path, "differs from the plan of config.yaml")


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("guarantee.reasons", lambda plan: plan["guarantee"].update(reasons=[])),
        ("covers", lambda plan: plan.update(covers="the model, whatever is done with it")),
        ("dp_event", lambda plan: plan.update(dp_event={"type": "GaussianDpEvent", "noise_multiplier": 9.0})),
    ],
)
def test_a_plan_that_states_more_than_its_mechanism_gives_is_refused_everywhere(call, run, tmp_path, field, change):
    to = tmp_path / "public"
    assert call("export", run, "--out", to)[0] == 0
    for folder in (run, to):
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        change(plan)
        (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    said = f"plan.json: {field}"
    for arguments in (("export", run, "--out", tmp_path / "b"), ("verify", run), ("verify", "--exported", to)):
        code, _, err = call(*arguments)
        assert (code, said in err) == (2, True), (arguments, err)
        assert err.splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "b").exists()


def test_the_exported_plan_is_written_from_the_mechanism(call, run, tmp_path):
    plan = json.loads((run / "plan.json").read_text(encoding="utf-8"))
    short = {key: value for key, value in plan["mechanism"].items() if key != "assumptions"}  # () by default
    (run / "plan.json").write_text(json.dumps({**plan, "mechanism": short, "files": {"a": "b"}}), encoding="utf-8")
    assert call("export", run, "--out", tmp_path / "public")[0] == 0
    exported = json.loads((tmp_path / "public" / "plan.json").read_text(encoding="utf-8"))
    assert "a" not in exported.pop("files")
    assert exported == plan


@pytest.mark.parametrize("name", ["notes.safetensors.txt.bak", "chat_template.jinja"])
def test_no_file_leaves_that_no_fingerprint_covers(call, run, tmp_path, name):
    assert (run / "checkpoints" / "final" / "generation_config.json").is_file()
    assert call("export", run, "--out", tmp_path / "public")[0] == 0
    assert not (tmp_path / "public" / "generation_config.json").exists()
    with quiet_transformers():
        AutoModelForCausalLM.from_pretrained(tmp_path / "public")
    shutil.rmtree(tmp_path / "public")
    (run / "checkpoints" / "final" / name).write_text("said by u1", encoding="utf-8")
    _refused(call, run, tmp_path, "is not the model that ")


@pytest.mark.parametrize("lacking", ["config.json", "model.safetensors"])
def test_an_exported_folder_without_a_model_is_refused(call, finished, tmp_path, lacking):
    to = tmp_path / "public"
    assert call("export", finished, "--out", to)[0] == 0
    plan = json.loads((to / "plan.json").read_text(encoding="utf-8"))
    del plan["files"][lacking]
    (to / lacking).unlink()
    (to / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    _, _, err = call("verify", "--exported", to)
    assert call.refused(by="verify_exported", naming=(f"'{to / 'plan.json'}'", "config.json"))
    assert err.count("\n") == 1


def test_a_plan_that_names_a_file_elsewhere_is_refused(call, finished, tmp_path):
    to = tmp_path / "public"
    assert call("export", finished, "--out", to)[0] == 0
    plan = json.loads((to / "plan.json").read_text(encoding="utf-8"))
    (to / "model.safetensors").rename(tmp_path / "model.safetensors")
    plan["files"]["../model.safetensors"] = plan["files"].pop("model.safetensors")
    (to / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    call("verify", "--exported", to)
    assert call.refused(by="verify_exported", naming="'../model.safetensors'")


def test_an_exported_folder_can_be_checked_by_whoever_receives_it(call, finished, tmp_path):
    to = tmp_path / "public"
    assert call("export", finished, "--out", to)[0] == 0
    code, out, _ = call("verify", "--exported", to)
    assert code == 0
    named = json.loads((to / "plan.json").read_text(encoding="utf-8"))["files"]
    assert set(named) == {p.name for p in to.iterdir()} - {"plan.json"}
    assert {"model.safetensors", "tokenizer.json", "README.md"} <= set(named)
    assert names(out, f"{len(named)} files", "plan.json", read_plan(to / "plan.json").guarantee().label)
    assert json.loads(call("verify", "--exported", to, "--json")[1])["agrees"] is True

    (to / "extra.py").write_text("x", encoding="utf-8")
    code, _, err = call("verify", "--exported", to)
    assert call.refused(by="verify_exported", naming=(f"'{to / 'extra.py'}'", "plan.json"))
    assert err.count("\n") == 1
    (to / "extra.py").unlink()
    weights = load_file(to / "model.safetensors")
    save_file(
        {k: v + torch.zeros_like(v) + (k.endswith("ln_f.bias")) for k, v in weights.items()}, to / "model.safetensors"
    )
    code, _, err = call("verify", "--exported", to)
    assert call.refused(by="verify_exported", naming=(f"'{to / 'model.safetensors'}'", "plan.json", "SHA-256"))
    assert err.count("\n") == 1
    (to / "model.safetensors").unlink()
    call("verify", "--exported", to)
    assert call.refused(by="verify_exported", naming=(f"'{to / 'model.safetensors'}'", "plan.json"))


def test_a_folder_that_was_not_exported_and_both_or_neither_are_one_line(call, finished, tmp_path):
    shutil.copy(finished / "plan.json", tmp_path / "plan.json")
    call("verify", "--exported", tmp_path)
    assert call.refused(by="verify_exported", naming=(f"'{tmp_path / 'plan.json'}'", "heldin export"))
    both = call("verify", finished, "--exported", tmp_path)
    assert both[0] == 2
    assert call.refused(by="verify", naming="--exported")
    assert call("verify")[2] == both[2]


def test_a_plan_says_which_step_s_model_it_covers(finished, tmp_path, call):
    """The small run keeps the best of its steps by the loss of held-in users."""
    plan = json.loads((finished / "plan.json").read_text(encoding="utf-8"))
    assert plan["covers"]["code"] == Covers.PROTECTED_VALIDATION.code
    assert call("export", finished, "--out", tmp_path / "public")[0] == 0
    card = (tmp_path / "public" / "README.md").read_text(encoding="utf-8")
    assert str(Covers.PROTECTED_VALIDATION()) in card


def test_the_card_follows_the_conventions_of_hugging_face(run, tmp_path, call):
    """Its reader parses the card, whose sections are those of its template, and finds what the release declares."""
    record = read_record(run / "record.json")
    release = {"access": "weights", "owner": "A. Owner", "purpose": "Completes mails: nothing else.", "who": "staff"}
    write_record(record.model_copy(update={"config": {**record.config, "release": release}}), run / "record.json")
    assert call("export", run, "--out", tmp_path / "public")[0] == 0
    card = ModelCard.load(tmp_path / "public" / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag, card.data.tags) == (
        "transformers", "text-generation", ["heldin"],
    )  # fmt: skip
    template = (Path(huggingface_hub.__file__).parent / "templates" / "modelcard_template.md").read_text("utf-8")
    sections = [line for line in template.splitlines() if line.startswith("#")]
    mine = [line for line in card.content.splitlines() if line.startswith("#")][1:]
    assert mine == [line for line in sections if line in mine]
    assert release["owner"] in card.content
    assert release["purpose"] in card.content
    # Whom it will be given to is for the report alone.
    assert release["who"] not in card.content


def test_nothing_that_was_measured_on_users_leaves(call, run, tmp_path):
    """The same card and plan, to the byte, whatever the audit found: neither depends on it."""
    assert call("export", run, "--out", tmp_path / "before")[0] == 0
    record = read_record(run / "record.json")
    found = {
        "attacks": [its.model_copy(update={"adjusted_p": 0.123}) for its in record.attacks],
        "decision": record.decision.model_copy(update={"statement": stated("No leak found"), "auroc_p": 0.987}),
        "split": record.split.model_copy(update={"held_in": 4321, "held_out": 1234}),
        "corpus": record.corpus.model_copy(update={"users": 98765, "records_per_audited_user": [7]}),
        "exposure": None,
        "measures": {},
        "knowledge": [],
    }
    write_record(record.model_copy(update=found), run / "record.json")
    assert call("export", run, "--out", tmp_path / "after")[0] == 0
    for name in ("README.md", "plan.json"):
        before, after = ((tmp_path / its / name).read_bytes() for its in ("before", "after"))
        assert before == after, name


@pytest.mark.slow
def test_a_model_that_was_scored_in_half_precision_is_exported(call, small_config, tmp_path):
    assert call("run", small_config, "--out", tmp_path / "run", "--set", "attack.precision=bf16")[0] in (0, 3, 4)
    code, _, err = call("export", tmp_path / "run", "--out", tmp_path / "public")
    assert (code, err) == (0, "")
    assert (tmp_path / "public" / "model.safetensors").is_file()
