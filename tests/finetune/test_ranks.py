"""Two processes train the model that one would: the same Poisson sample, shared out, and noise once."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from heldin.finetune.ranks import own_share
from tests.refusals import names

SCRIPT = """
import os
import sys
from contextlib import nullcontext
from pathlib import Path
import numpy as np
import torch
from heldin.base.coins import seed_key
from heldin.defenses.choices import ConstantDivisor, FlatClip, NoiseGenerator
from heldin.defenses.samplers import BandedPoissonSampler, PoissonSampler
from heldin.defenses.mechanism import Mechanism
from heldin.finetune.holding import PlainClipping
from heldin.finetune.loop import train
from heldin.finetune.ranks import first_process_first, joined
from heldin.finetune.recipe import Recipe, Select
from heldin.finetune.units import PrivateRecords, plan_private_training
from heldin.models.opening import load_language_model
from heldin.models.tokens import Tokens

torch.set_num_threads(1)
base, out, kind = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
generator = torch.Generator().manual_seed(0)
sequences = [Tokens(torch.randint(5, 300, (12 + i % 9,), generator=generator).tolist()) for i in range(43)]
# Of every other record some tokens count, as the answers of chats do.
sequences = [Tokens(s.ids, np.arange(len(s)) % 3 > 0) if i % 2 else s for i, s in enumerate(sequences)]
recipe = Recipe(epochs=1, batch_size=7, learning_rate=1e-3, select=Select.LAST, sequence_length=31, checkpoint_every=3)
sampler = BandedPoissonSampler(rate=0.5, population=12, bands=3) if kind == "banded" else PoissonSampler(rate=0.5)
mechanism = Mechanism(
    unit="user", sampled="user", sampler=sampler, group_size=3, clip=FlatClip(norm=0.5),
    noise_multiplier=0.8, steps=6, delta=1e-4, divisor=ConstantDivisor(value=5),
)
records = PrivateRecords([f"r{i}" for i in range(43)], [f"u{i % 11}" for i in range(43)], [len(s) for s in sequences])
private = plan_private_training(mechanism, seed_key(1), records, NoiseGenerator.PHILOX)
with joined(), first_process_first() if kind == "before" else nullcontext():
    result = train(
        load_language_model(base),
        sequences,
        recipe,
        out,
        private=private if kind in ("private", "banded") else None,
        clipping=PlainClipping("example", 0.5) if kind == "clip" else None,
    )
    # In one piece: two processes write to one pipe.
    os.write(1, f"smallest norm {result.smallest_norm}\\n".encode())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["private", "banded", "plain", "clip", "before"])
def test_two_processes_end_with_the_model_of_one(make_lm, tmp_path, kind):
    """43 records in batches of 7: the last batch has one record, and one process none of it."""
    lm = make_lm()
    lm.model.save_pretrained(tmp_path / "base")
    lm.tokenizer.save_pretrained(tmp_path / "base")
    (tmp_path / "job.py").write_text(SCRIPT, encoding="utf-8")
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}", "OMP_NUM_THREADS": "1"}
    job = [str(tmp_path / "job.py"), str(tmp_path / "base")]
    alone = [sys.executable, *job, str(tmp_path / "one"), kind]
    both = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    norms = []
    for command in (alone, [*both, *job, str(tmp_path / "two"), kind]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        norms += re.findall(r"^smallest norm (.+)$", done.stdout, re.M)
    # Of all examples, and known to both: a process sees only its own.
    assert len(norms) == 3
    assert norms[1] == norms[2]
    if kind == "clip":
        assert float(norms[1]) == pytest.approx(float(norms[0]), rel=1e-4)
    else:
        assert set(norms) == {"None"}
    one, two = (load_file(tmp_path / n / "final" / "model.safetensors") for n in ("one", "two"))
    base = lm.model.state_dict()
    moved = max(float((one[n] - base[n]).abs().max()) for n in one)
    assert moved > 1e-3
    for name in one:
        torch.testing.assert_close(two[name], one[name], atol=2e-5, rtol=1e-3)


def test_alone_a_process_does_everything():
    assert own_share([1, 2, 3]) == [1, 2, 3]


DISAGREEING = """
import os
import sys
from pathlib import Path
from unittest.mock import patch
from heldin.base.errors import InputError, ResumableError
from heldin.finetune import ranks

shared, own = Path(sys.argv[1]), Path(sys.argv[2]) / os.environ["RANK"]
own.mkdir(parents=True)

def told(call, *values):
    try:
        call(*values)
    except (InputError, ResumableError) as error:
        return f"{type(error).__name__}: {error}"
    return "agreed"

def gpu_of(_):
    return "NVIDIA " + ("H100" if ranks.rank() == 0 else "A100")

with ranks.joined():
    same, other = ("weights", "give the command again", 3, "sum"), ("step", "give it again", ranks.rank())
    lines = [told(ranks.require_agreement, *its) for its in (same, other)]
    lines += [told(ranks.require_like_devices)]
    with patch.object(ranks, "device_name", gpu_of):
        lines += [told(ranks.require_like_devices)]
    lines += [told(ranks.require_shared_folder, its) for its in (shared, own)]
(own / "lines").write_text("\\n".join(lines))
"""


@pytest.mark.slow
def test_processes_that_disagree_say_so_in_one_line_each(tmp_path):
    (tmp_path / "job.py").write_text(DISAGREEING, encoding="utf-8")
    (tmp_path / "common").mkdir()
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}", "OMP_NUM_THREADS": "1"}
    both = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*both, str(tmp_path / "job.py"), str(tmp_path / "common"), str(tmp_path / "own")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = ((tmp_path / "own" / rank / "lines").read_text(encoding="utf-8").splitlines() for rank in "01")
    differ = "ResumableError: processes 0 and 1 do not have the same step: give it again"
    devices = "InputError: process 0 has NVIDIA H100 and process 1 has NVIDIA A100: train on devices of the same model"
    assert [its[:4] for its in (first, second)] == [["agreed", differ, "agreed", devices]] * 2
    assert (first[4], second[4]) == ("agreed", "agreed")
    for rank, lines in enumerate((first, second)):
        assert names(lines[5], "InputError", "process 1")
        assert f"own/{rank}'" in lines[5]
    assert list((tmp_path / "common").iterdir()) == []
