"""What leaves is what was trained, under its own label: anything else is refused with one line, and can be checked."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from audit.record import read_record, write_record


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a finished run, to be tampered with."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def _refused(call, run, tmp_path, *words):
    code, _, err = call("export", run, "--to", tmp_path / "public")
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
    _refused(call, run, tmp_path, "is not the model that was trained and audited here (target.fingerprint: the record")


def test_weights_of_another_shape_are_not_exported(call, run, tmp_path):
    def cut(tensors):
        tensors["transformer.ln_f.bias"] = tensors["transformer.ln_f.bias"][:-1].clone()

    _weights(run, cut)
    _refused(call, run, tmp_path, "the weights of", "are incomplete or of another shape")


def test_another_tokenizer_is_not_exported(call, run, tmp_path):
    path = run / "checkpoints" / "final" / "tokenizer_config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, "model_max_length": 7}), encoding="utf-8")
    _refused(call, run, tmp_path, "is not the model that was trained and audited here")


def test_a_sentence_that_the_plan_does_not_give_is_not_exported(call, run, tmp_path):
    record = read_record(run / "record.json")
    training = record.training.model_copy(update={"guarantee": "epsilon 0.1, delta 1e-09 per user", "epsilon": 0.1})
    write_record(record.model_copy(update={"training": training}), run / "record.json")
    _refused(call, run, tmp_path, 'training.guarantee: the record states "epsilon 0.1, delta 1e-09 per user"', "verify")


def test_a_plan_of_another_config_is_not_exported(call, run, tmp_path):
    path = run / "config.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("batch_size: 8", "batch_size: 4", 2), encoding="utf-8")
    _refused(call, run, tmp_path, "is not the plan that config.yaml gives")


def test_an_exported_folder_can_be_checked_by_whoever_receives_it(call, finished, tmp_path):
    to = tmp_path / "public"
    assert call("export", finished, "--to", to)[0] == 0
    code, out, _ = call("verify", "--exported", to)
    assert code == 0
    named = json.loads((to / "plan.json").read_text(encoding="utf-8"))["files"]
    assert set(named) == {p.name for p in to.iterdir()} - {"plan.json"}
    assert {"model.safetensors", "tokenizer.json", "README.md"} <= set(named)
    assert out.startswith(f"{len(named)} files are those that plan.json names: not a DP guarantee")
    assert json.loads(call("verify", "--exported", to, "--json")[1])["agrees"] is True

    (to / "extra.py").write_text("x", encoding="utf-8")
    code, _, err = call("verify", "--exported", to)
    assert (code, err) == (
        2,
        f"error: '{to / 'extra.py'}' is not named by plan.json: remove it, or fetch the folder again\n",
    )
    (to / "extra.py").unlink()
    weights = load_file(to / "model.safetensors")
    save_file(
        {k: v + torch.zeros_like(v) + (k.endswith("ln_f.bias")) for k, v in weights.items()}, to / "model.safetensors"
    )
    code, _, err = call("verify", "--exported", to)
    assert (code, err) == (
        2,
        f"error: '{to / 'model.safetensors'}' is not the file that plan.json names (SHA-256 differs): do not use the"
        " folder\n",
    )
    (to / "model.safetensors").unlink()
    assert "is missing, though plan.json names it" in call("verify", "--exported", to)[2]


def test_a_folder_that_was_not_exported_and_both_or_neither_are_one_line(call, finished, tmp_path):
    shutil.copy(finished / "plan.json", tmp_path / "plan.json")
    assert "names no files: it was not written by `heldin export`" in call("verify", "--exported", tmp_path)[2]
    both = call("verify", finished, "--exported", tmp_path)
    assert both[0] == 2
    assert "name the folder of a finished run, or --exported" in both[2]
    assert call("verify")[2] == both[2]


def test_a_plan_says_which_step_s_model_it_covers(finished, tmp_path, call):
    """The small run keeps the best of its steps by the loss of held-in users."""
    plan = json.loads((finished / "plan.json").read_text(encoding="utf-8"))
    assert plan["covers"].startswith("the model of the step that the loss of protected users chose; not losses")
    assert call("export", finished, "--to", tmp_path / "public")[0] == 0
    card = (tmp_path / "public" / "README.md").read_text(encoding="utf-8")
    assert "This speaks of the model of the step that the loss of protected users chose" in card
