"""Processes that each hold a shard train the model that one process would: units clipped whole, noise once."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from heldin.defenses.choices import ClipQuantile, FlatClip, LocalUpdates
from heldin.finetune.sharded_gradients import sharded_private_gradient
from heldin.finetune.training import holding_of
from tests.finetune.test_filtered import _training as _filtered
from tests.finetune.test_private import _training
from tests.refusals import names, refused

SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
import numpy as np
import torch
from heldin.base.coins import seed_key
from heldin.base.errors import InputError
from heldin.defenses import noise
from heldin.defenses.choices import ConstantDivisor, FlatClip, NoiseGenerator
from heldin.defenses.samplers import BandedPoissonSampler, PoissonSampler
from heldin.defenses.mechanism import Mechanism
from heldin.finetune.loop import train
from heldin.finetune.ranks import joined, rank
from heldin.finetune.recipe import Recipe, Select
from heldin.finetune.sharding import spread
from heldin.finetune.units import PrivateRecords, plan_private_training
from heldin.models.opening import load_language_model
from heldin.models.tokens import Tokens
from heldin.models.logprobs import score_texts

torch.set_num_threads(1)
base, out, kind, shard = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]) or None
generator = torch.Generator().manual_seed(0)
sequences = [Tokens(torch.randint(5, 300, (12 + i % 9,), generator=generator).tolist()) for i in range(43)]
# Of every other record some tokens count, as the answers of chats do.
sequences = [Tokens(s.ids, np.arange(len(s)) % 3 > 0) if i % 2 else s for i, s in enumerate(sequences)]
recipe = Recipe(
    epochs=1, batch_size=7, learning_rate=1e-3, select=Select.LAST, sequence_length=31, checkpoint_every=2,
    evaluations=2, shard=shard, checkpointing=kind.endswith("checkpointed"), micro_batch=2,
)
sampler = BandedPoissonSampler(rate=0.5, population=14, bands=3) if "banded" in kind else PoissonSampler(rate=0.5)
mechanism = Mechanism(
    unit="user", sampled="user", sampler=sampler, group_size=5, clip=FlatClip(norm=0.5),
    noise_multiplier=0.8, steps=6, delta=1e-4, divisor=ConstantDivisor(value=5),
)
# Units of one record to five: fewer than processes of a group, and more.
users = [f"u{i * i % 13}" for i in range(43)]
records = PrivateRecords([f"r{i}" for i in range(43)], users, [len(s) for s in sequences])
generator = NoiseGenerator.SECURE if "secure" in kind else NoiseGenerator.PHILOX
private = plan_private_training(mechanism, seed_key(1), records, generator, micro_records=2)
said = []
stop = [4 if kind.startswith("stopped") else 99]

def advance(steps):
    stop[0] -= steps
    if stop[0] == 0:
        raise KeyboardInterrupt

# Guarded: processes that this file starts import it.
if __name__ == "__main__":
    if "secure" in kind:
        noise.AHEAD_FROM = 1  # a tiny model has few numbers
    with joined():
        lm = load_language_model(base)
        try:
            its = spread(lm.model, recipe)
            loss = lambda step, model: {"loss": -score_texts(replace(lm, model=model), ["The river runs."])[0].total}
            result = train(
                lm, sequences, recipe, out, private=None if kind == "plain" else private, evaluate=loss,
                select_by="loss", advance=advance, spread=its, say=said.append,
            )
            if rank() == 0:
                ahead = any("a step ahead" in line for line in said)
                print([round(point["loss"], 4) for point in result.history], result.gradients, ahead)
        except (KeyboardInterrupt, InputError) as error:
            print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory, make_lm):
    folder = tmp_path_factory.mktemp("sharding")
    lm = make_lm()
    lm.model.save_pretrained(folder / "base")
    lm.tokenizer.save_pretrained(folder / "base")
    (folder / "job.py").write_text(SCRIPT, encoding="utf-8")
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}", "OMP_NUM_THREADS": "1"}

    def run(name, kind, processes, shard):
        command = [sys.executable]
        if processes > 1:
            command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command += [str(folder / "job.py"), str(folder / "base"), str(folder / name), kind, str(shard)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip()

    return folder, run


def _same(folder, one, other):
    first, second = (load_file(folder / name / "final" / "model.safetensors") for name in (one, other))
    base = load_file(folder / "base" / "model.safetensors")
    assert first.keys() == second.keys() == base.keys()
    assert max(float((first[name] - base[name]).abs().max()) for name in base) > 1e-3
    for name in first:
        torch.testing.assert_close(second[name], first[name], atol=1e-5, rtol=1e-3)
    configs = [
        json.loads((folder / name / "final" / "config.json").read_text(encoding="utf-8")) for name in (one, other)
    ]
    assert configs[0] == configs[1]


def _newest(folder):
    return max((folder / "resume").glob("step-*"))


@pytest.mark.slow
def test_shards_and_replicas_of_shards_end_with_the_model_of_one_process(job):
    folder, run = job
    said = [run("one", "private", 1, 0), run("two", "private", 2, 2), run("four", "private checkpointed", 4, 2)]
    assert said[0] == said[1] == said[2]
    for name in ("two", "four"):
        _same(folder, "one", name)
    # Stopped among four processes, and gone on with among two.
    assert "KeyboardInterrupt" in run("resumed", "stopped", 4, 4)
    assert not (folder / "resumed" / "final").exists()
    assert names(run("resumed", "private", 1, 0), "finetune.shard")
    assert names(run("resumed", "plain", 2, 2), "InputError", _newest(folder / "resumed").name)
    shutil.copytree(folder / "resumed", folder / "damaged")
    newest = _newest(folder / "damaged")
    assert {its.suffix for its in newest.iterdir()} == {".json", ".safetensors"}
    cut = newest / "shard-00003.safetensors"
    cut.write_bytes(cut.read_bytes()[:-40])
    assert names(run("damaged", "private", 2, 2), "InputError", folder / "damaged" / "resume")
    run("resumed", "private", 2, 2)
    _same(folder, "one", "resumed")
    assert names(run("one", "private", 2, 2), "InputError", _newest(folder / "one").name)


@pytest.mark.slow
def test_banded_noise_of_shards_is_that_of_one_process_after_a_resume_too(job):
    folder, run = job
    loss = run("banded", "banded", 1, 0)
    assert run("banded of two", "banded", 2, 2) == loss
    _same(folder, "banded", "banded of two")
    assert "KeyboardInterrupt" in run("banded resumed", "stopped banded", 2, 2)
    run("banded resumed", "banded", 2, 2)
    _same(folder, "banded", "banded resumed")


@pytest.mark.slow
def test_secure_noise_drawn_ahead_by_shards_is_that_of_one_process(job):
    folder, run = job
    said = run("secure", "secure", 1, 0)
    assert said.endswith("True")
    assert run("secure of two", "secure", 2, 2) == said
    _same(folder, "secure", "secure of two")
    assert run("not secure", "private", 1, 0).endswith("False")


@pytest.mark.slow
def test_a_plain_training_in_shards_is_that_of_one_process(job):
    folder, run = job
    said = run("plain", "plain", 1, 0)
    # Dropout is off in this model, and batches of 7 leave a process without a record in some passes.
    assert run("plain of four", "plain", 4, 2) == said
    _same(folder, "plain", "plain of four")


def test_a_mechanism_that_needs_whole_models_is_refused_before_the_first_step(sequences):
    follows = FlatClip(norm=0.5, follows=ClipQuantile())
    local = LocalUpdates(learning_rate=0.01)
    for private in (_training(sequences, clip=follows), _training(sequences, local=local), _filtered(sequences)):
        with refused(by=holding_of, naming="finetune.shard"):
            holding_of(object(), private)
    assert holding_of(object(), _training(sequences)).private_gradient.func is sharded_private_gradient


@pytest.mark.slow
def test_what_cannot_be_spread_is_one_line(job):
    _, run = job
    assert "InputError finetune.shard is 4, but 1 process(es) train: start a multiple of 4 processes" in run(
        "none", "private", 1, 4
    )
    assert "InputError finetune.shard is 2, but 3 process(es) train" in run("none", "private", 3, 2)
