"""Two processes train the model that one would: the same Poisson sample, shared out, and noise once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from heldin.finetune.ranks import own_share

SCRIPT = """
import sys
from contextlib import nullcontext
from pathlib import Path
import torch
from heldin.base.coins import seed_key
from heldin.defenses.choices import ConstantDivisor, FlatClip, NoiseGenerator, PoissonSampler
from heldin.defenses.mechanism import Mechanism
from heldin.finetune.clipping import PlainClipping
from heldin.finetune.loop import train
from heldin.finetune.ranks import first_process_first, joined
from heldin.finetune.recipe import Recipe, Select
from heldin.finetune.units import PrivateRecords, plan_private_training
from heldin.models.loading import load_language_model

torch.set_num_threads(1)
base, out, kind = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
generator = torch.Generator().manual_seed(0)
sequences = [torch.randint(5, 300, (12 + i % 9,), generator=generator).tolist() for i in range(43)]
recipe = Recipe(epochs=1, batch_size=7, learning_rate=1e-3, select=Select.LAST, sequence_length=31, checkpoint_every=3)
mechanism = Mechanism(
    unit="user", sampled="user", sampler=PoissonSampler(rate=0.5), group_size=3, clip=FlatClip(norm=0.5),
    noise_multiplier=0.8, steps=6, delta=1e-4, divisor=ConstantDivisor(value=5),
)
records = PrivateRecords([f"r{i}" for i in range(43)], [f"u{i % 11}" for i in range(43)], [len(s) for s in sequences])
private = plan_private_training(mechanism, seed_key(1), records, NoiseGenerator.PHILOX)
with joined(), first_process_first() if kind == "before" else nullcontext():
    train(
        load_language_model(base),
        sequences,
        recipe,
        out,
        private=private if kind == "private" else None,
        clipping=PlainClipping("example", 0.5) if kind == "clip" else None,
    )
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["private", "plain", "clip", "before"])
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
    for command in (alone, [*both, *job, str(tmp_path / "two"), kind]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = (load_file(tmp_path / n / "final" / "model.safetensors") for n in ("one", "two"))
    base = lm.model.state_dict()
    moved = max(float((one[n] - base[n]).abs().max()) for n in one)
    assert moved > 1e-3
    for name in one:
        torch.testing.assert_close(two[name], one[name], atol=2e-5, rtol=1e-3)


def test_alone_a_process_does_everything():
    assert own_share([1, 2, 3]) == [1, 2, 3]
