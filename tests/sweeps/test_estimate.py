"""How long training takes, as ``heldin sweep --check`` says it: measured on the model's shape, or left out."""

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

import heldin.sweeps.check_sweep as estimate
from heldin.stages.run_config import parse_config
from heldin.sweeps.check_sweep import Timing, check_sweep, lines
from heldin.sweeps.load import load_sweep
from heldin.sweeps.sweep_config import Resources
from tests.conftest import SMALL
from tests.refusals import names
from tests.tiny_sweeps import ULS, USERS, written


def test_a_shape_is_measured_once_and_leaves_the_process_as_it_was(monkeypatch):
    measured = []
    paced = estimate.seconds_per_record
    monkeypatch.setattr(
        estimate,
        "seconds_per_record",
        lambda model, recipe: measured.append(recipe.sequence_length) or paced(model, recipe),
    )
    config = parse_config(SMALL, "small")
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    timing = Timing(Resources(threads=1))
    seconds = timing.seconds_per_gradient(config)
    assert 0 < seconds < 60
    assert timing.seconds_per_gradient(parse_config({**SMALL, "name": "other"}, "other")) == seconds
    assert measured == [48]
    shorter = {**SMALL, "finetune": {**SMALL["finetune"], "sequence_length": 24}}
    assert timing.seconds_per_gradient(parse_config(shorter, "shorter")) > 0
    assert measured == [48, 24]
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_that_cannot_be_made_here_has_no_time(tmp_path, monkeypatch):
    other = T5Config(vocab_size=40, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(other).save_pretrained(tmp_path / "t5")
    for base in (tmp_path / "t5", tmp_path / "nowhere"):
        config = parse_config({**SMALL, "model": {"base": str(base)}}, "small")
        assert Timing(Resources()).seconds_per_gradient(config) is None
    monkeypatch.setattr(estimate, "LARGEST", 1000)
    assert Timing(Resources()).seconds_per_gradient(parse_config(SMALL, "small")) is None


def test_the_check_says_what_is_known_beforehand_and_of_plain_training_the_pace(tmp_path, monkeypatch):
    monkeypatch.setattr(Timing, "seconds_per_gradient", lambda self, config: 0.5)
    variants = {"none": USERS, "uls": {**USERS, "defense": {**ULS, "group_size": 2}}}
    sweep = load_sweep(written(tmp_path, variants=variants, blocks=3, resources={"workers": 2}))
    checked = check_sweep(sweep, tmp_path / "out")
    plain, private = checked.variants
    assert (plain["training_seconds"], plain["seconds_per_1000_gradients"]) == (None, 500.0)
    # 6 steps, each of 8 in 30 of the users who are there, with 2 records each; by the plan 30 users are, and 48 s.
    there = 16.56
    assert private["training_seconds"] == pytest.approx(0.5 * 6 * 8 / 30 * there * 2, abs=0.1)
    said = "\n".join(lines(checked, sweep))
    assert "about 500.0 s for 1,000 of them" in said
    assert names(said, "96 gradients", "26 s")
    (time,) = (line for line in said.splitlines() if line.strip().startswith("time:"))
    assert names(time, "1 minute", "3", "2")
    monkeypatch.setattr(Timing, "seconds_per_gradient", lambda self, config: None)
    assert "time:" not in "\n".join(lines(check_sweep(sweep, tmp_path / "out"), sweep))
