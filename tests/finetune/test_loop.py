"""The loop against one record at a time; kill and resume; best and last; adapters; divergence."""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from heldin.base.errors import ResumableError, Terminated
from heldin.finetune.loop import train
from heldin.finetune.recipe import Lora, Optimizer, Recipe, Schedule, Select
from heldin.models.opening import load_language_model
from tests.documents import encode
from tests.oracles.plain_training import naive_training
from tests.refusals import raised_apart, refused

RECIPE = Recipe(
    epochs=2,
    batch_size=4,
    learning_rate=1e-3,
    warmup_steps=5,
    sequence_length=31,
    checkpoint_every=5,
    evaluations=4,
    select=Select.LAST,
)


@pytest.fixture
def sequences(make_lm, english):
    return encode(make_lm().tokenizer, english[:24], 31)


def _weights(folder):
    return load_file(folder / "model.safetensors")


def _same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_training_equals_the_oracle(make_lm, sequences, tmp_path):
    result = train(make_lm(), sequences, RECIPE, tmp_path)
    expected = naive_training(make_lm(), sequences, RECIPE).state_dict()
    found = _weights(result.folder)
    assert result.steps == 12
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], atol=2e-4, rtol=2e-3)
    before = make_lm().model.state_dict()
    assert max((found[n] - before[n]).abs().max().item() for n in found) > 5e-3


def test_micro_batches_do_not_change_the_result(make_lm, sequences, tmp_path):
    whole = train(make_lm(), sequences, RECIPE, tmp_path / "whole")
    cut = train(make_lm(), sequences, replace(RECIPE, micro_batch=3), tmp_path / "cut")
    for name, tensor in _weights(whole.folder).items():
        torch.testing.assert_close(tensor, _weights(cut.folder)[name], atol=2e-4, rtol=2e-3)


@pytest.mark.parametrize(
    "change",
    [
        *({"optimizer": optimizer} for optimizer in Optimizer),
        *({"optimizer": Optimizer.SGD, "momentum": 0.9, "schedule": schedule} for schedule in Schedule),
    ],
    ids=lambda change: " ".join(map(str, change.values())),
)
def test_a_run_interrupted_anywhere_ends_with_bitwise_the_same_weights(make_lm, sequences, tmp_path, change):
    recipe = replace(RECIPE, **change)
    undisturbed = train(make_lm(), sequences, recipe, tmp_path / "undisturbed")
    # Before, at and after a checkpoint; of the others what the optimizer keeps and the rate are all that differs.
    for stop in (1, 5, 7) if recipe == RECIPE else (7,):
        folder = tmp_path / f"stopped-at-{stop}"
        steps = []

        def interrupt(done, steps=steps, stop=stop):
            steps.append(done)
            if sum(steps) == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(make_lm(), sequences, recipe, folder, advance=interrupt)
        resumed = train(make_lm(), sequences, recipe, folder)
        assert _same(_weights(resumed.folder), _weights(undisturbed.folder))


@pytest.fixture
def handled():
    """As a command has them: Ctrl-C is KeyboardInterrupt, and SIGTERM is one too."""

    def terminated(*_):
        raise Terminated

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, terminated)
    handlers = {number: signal.getsignal(number) for number in before}
    yield handlers
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_signal_waits_for_the_end_of_the_step_and_leaves_a_checkpoint(
    make_lm, sequences, tmp_path, handled, number, raised
):
    recipe = replace(RECIPE, checkpoint_every=1000)
    undisturbed = train(make_lm(), sequences, recipe, tmp_path / "undisturbed")
    steps: list[int] = []

    def interrupt(done):
        steps.append(done)
        if len(steps) == 3:
            os.kill(os.getpid(), number)
            steps.append(0)  # nothing is raised here

    with pytest.raises(raised):
        train(make_lm(), sequences, recipe, tmp_path / "stopped", advance=interrupt)
    assert steps == [1, 1, 1, 0]
    assert {its: signal.getsignal(its) for its in handled} == handled
    again: list[int] = []
    resumed = train(make_lm(), sequences, recipe, tmp_path / "stopped", advance=again.append)
    assert again == [3] + [1] * 9
    assert _same(_weights(resumed.folder), _weights(undisturbed.folder))


def test_a_second_signal_does_not_wait(make_lm, sequences, tmp_path, handled):
    steps: list[int] = []

    def interrupt(done):
        steps.append(done)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        steps.append(0)

    with pytest.raises(Terminated):
        train(make_lm(), sequences, RECIPE, tmp_path, advance=interrupt)
    assert steps == [1]
    assert not (tmp_path / "resume").exists()
    assert {its: signal.getsignal(its) for its in handled} == handled


CHILD = """
import sys, time, torch
from pathlib import Path
torch.set_num_threads(1)
sys.path.insert(0, "tests")
from heldin.corpus.document import Document
from heldin.finetune.batches import encode
from heldin.finetune.loop import train
from heldin.finetune.recipe import Recipe, Select
from heldin.models.opening import load_language_model
lm = load_language_model(sys.argv[1])
texts = map(Document.of, Path(sys.argv[2]).read_text().splitlines())
recipe = Recipe(epochs=3, batch_size=4, learning_rate=1e-3, sequence_length=31, checkpoint_every=2, evaluations=6)
seen = []
def evaluate(step, model):
    return {"loss": abs(step - 20.0)}
def advance(n):
    time.sleep(float(sys.argv[4]) * n)
result = train(lm, encode(lm.tokenizer, texts, 31), recipe, Path(sys.argv[3]), evaluate=evaluate, select_by="loss",
               advance=advance)
print(result.chosen_step, len(result.history))
"""


@pytest.mark.slow
def test_kill_minus_nine_and_the_same_command_again_ends_the_same(make_lm, english, tmp_path):
    lm = make_lm()
    lm.model.save_pretrained(tmp_path / "base")
    lm.tokenizer.save_pretrained(tmp_path / "base")
    (tmp_path / "texts").write_text("\n".join(english[:40]), encoding="utf-8")

    def start(folder, delay):
        command = [
            sys.executable,
            "-c",
            CHILD,
            str(tmp_path / "base"),
            str(tmp_path / "texts"),
            str(folder),
            str(delay),
        ]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    out, err = start(tmp_path / "whole", 0).communicate(timeout=120)
    assert out == "20 6\n", err
    killed = tmp_path / "killed"
    for resumable in (2, 10, 22):
        child = start(killed, 0.02)
        deadline = time.monotonic() + 60
        while not list(killed.glob(f"resume/step-{resumable:08d}")) and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        assert not (killed / "final").exists()
    out, err = start(killed, 0).communicate(timeout=120)
    assert out == "20 6\n", err
    assert _same(_weights(killed / "final"), _weights(tmp_path / "whole" / "final"))


def test_the_best_checkpoint_is_kept_and_loads_with_transformers(make_lm, sequences, tmp_path):
    losses = {3: 3.0, 6: 1.0, 9: 2.0, 12: 1.5}
    kept = {}

    def evaluate(step, model):
        assert not model.training
        kept[step] = {k: v.clone() for k, v in model.state_dict().items()}
        return {"loss": losses[step]}

    recipe = replace(RECIPE, select=Select.BEST)
    result = train(make_lm(), sequences, recipe, tmp_path, evaluate=evaluate, select_by="loss")
    assert result.chosen_step == 6
    assert [point["loss"] for point in result.history] == [3.0, 1.0, 2.0, 1.5]
    assert all(point["train_loss"] > 0 for point in result.history)
    loaded = AutoModelForCausalLM.from_pretrained(result.folder)
    assert all(torch.equal(v, kept[6][k]) for k, v in loaded.state_dict().items())
    again = train(make_lm(), sequences, recipe, tmp_path, evaluate=evaluate, select_by="loss")
    assert (again.chosen_step, again.history) == (result.chosen_step, result.history)


def test_lora_trains_adapters_only_and_leaves_a_merged_model(make_lm, sequences, tmp_path):
    recipe = replace(RECIPE, lora=Lora(rank=2, alpha=4), learning_rate=1e-2)
    lm = make_lm()
    before = {k: v.clone() for k, v in lm.model.state_dict().items()}
    result = train(lm, sequences, recipe, tmp_path)
    merged = load_language_model(str(result.folder)).model.state_dict()
    changed = {k for k in before if not torch.equal(before[k], merged[k])}
    assert changed
    assert all("attn" in k or "mlp" in k for k in changed)
    state = load_file(next((tmp_path / "resume").glob("step-*")) / "weights.safetensors")
    assert all("lora_" in name for name in state)


def test_training_that_diverges_stops_names_the_step_and_keeps_the_last_good_checkpoint(make_lm, sequences, tmp_path):
    recipe = replace(RECIPE, optimizer=Optimizer.SGD, learning_rate=1e18)
    with refused(by="OngoingTraining._plain_gradient", naming=("NaN", "finetune.learning_rate"), kind=ResumableError):
        train(make_lm(), sequences, recipe, tmp_path)
    for state in (tmp_path / "resume").glob("step-*"):
        assert all(torch.isfinite(t).all() for t in load_file(state / "weights.safetensors").values())
    assert not (tmp_path / "final").exists()


def test_a_checkpoint_of_another_job_is_refused(make_lm, sequences, tmp_path):
    train(make_lm(), sequences, RECIPE, tmp_path)
    for base, data, recipe in (
        (make_lm(seed=1), sequences, RECIPE),
        (make_lm(), sequences[:-1], RECIPE),
        (make_lm(), sequences, replace(RECIPE, learning_rate=2e-3)),
        (make_lm(), sequences, replace(RECIPE, schedule=Schedule.COSINE)),
    ):
        with refused(by="load_state", naming="step-00000012"):
            train(base, data, recipe, tmp_path)


@pytest.mark.parametrize("name", ["state.json", "weights.safetensors", "optimizer.safetensors"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_serves(make_lm, sequences, tmp_path, name):
    whole = train(make_lm(), sequences, RECIPE, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "hit")
    newest = sorted((tmp_path / "hit" / "resume").iterdir())[-1]
    (newest / name).write_bytes((newest / name).read_bytes()[:30])
    shutil.rmtree(tmp_path / "hit" / "final")
    lines = []
    resumed = train(make_lm(), sequences, RECIPE, tmp_path / "hit", say=lines.append)
    assert f"'{newest}'" in lines[0]
    assert _same(_weights(resumed.folder), _weights(whole.folder))
    for state in (tmp_path / "hit" / "resume").iterdir():
        (state / name).write_bytes((state / name).read_bytes()[:-1])
    shutil.rmtree(tmp_path / "hit" / "final")
    with refused(by="newest_state", naming="resume"):
        train(make_lm(), sequences, RECIPE, tmp_path / "hit")


def test_nothing_to_train_on_or_to_choose_by(make_lm, sequences, tmp_path):
    with refused(by="_require_possible") as nothing:
        train(make_lm(), [], RECIPE, tmp_path)
    with refused(by="_require_possible", naming="finetune.select") as unjudged:
        train(make_lm(), sequences, replace(RECIPE, select=Select.BEST), tmp_path)
    assert raised_apart(nothing, unjudged)
