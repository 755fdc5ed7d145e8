"""The ladder of users: messages, models, the sweep of a rung, its table, and a small run."""

import json
from dataclasses import replace

import pytest
from transformers import AutoConfig

from heldin.audit.users_ladder import read_ladder
from heldin.models.model_config import TinyModel
from replication import users
from replication.users import CHARACTERS, message, messages, people_of, rung_sweep, write_models, write_rungs

SMALL = TinyModel(vocabulary=300, context=24, hidden=16, layers=1, heads=2, window=24)


def test_a_message_is_the_end_of_a_mail_from_the_beginning_of_a_word():
    assert message("short") == "short"
    text = f"{'x' * 30} {'y' * 10}\n{'z' * 39}"
    assert message(text) == f"{'y' * 10}\n{'z' * 39}"  # 50 characters
    assert message(text + "z") == "z" * 40  # the word before would be cut
    assert max(len(row["text"]) for row in messages(20, 5)) <= CHARACTERS


def test_a_rung_has_the_first_people_of_the_largest(tmp_path, monkeypatch):
    monkeypatch.setattr(users, "AUDITED", 4)
    write_rungs(tmp_path, (2, 6))
    small, large = ((tmp_path / f"people-{rung}.jsonl").read_text(encoding="utf-8") for rung in (2, 6))
    assert large.startswith(small)
    assert len({json.loads(line)["user"] for line in small.splitlines()}) == people_of(2) == 4
    assert len(large.splitlines()) == people_of(6) * users.RECORDS


def test_a_rung_differs_from_another_by_people_and_population_alone(tmp_path):
    """A step costs the same, so only the noise may differ."""
    few, many = (rung_sweep(tmp_path, rung) for rung in (1000, 64000))
    for one, other in zip(few.variants, many.variants, strict=True):
        assert (one.name, one.config.finetune) == (other.name, other.config.finetune)
        mine, theirs = (variant.config.defense.model_dump() for variant in (one, other))
        assert {key for key in mine if mine[key] != theirs[key]} == {"population"}
    assert {variant.group for variant in few.variants} == {"plain"}  # the same people in a block
    assert [few.config.name, rung_sweep(tmp_path, 1000, "users-banded").config.name] == [
        "users-1000",
        "users-banded-1000",
    ]


def test_banded_noise_has_the_training_of_uls(tmp_path):
    uls = {variant.name: variant.config for variant in rung_sweep(tmp_path, 4000).variants}
    for variant in rung_sweep(tmp_path, 4000, "users-banded").variants:
        own, other = variant.config, uls[variant.name.replace("banded", "uls")]
        # Each has the best learning rate of its own pilot.
        recipe = replace(own.finetune, learning_rate=other.finetune.learning_rate)
        assert (recipe, own.corpus, own.attack) == (other.finetune, other.corpus, other.attack)
        keys = ("population", "cohort", "steps", "group_size", "target_epsilon", "clip_norm")
        assert [getattr(own.defense, key) for key in keys] == [getattr(other.defense, key) for key in keys]


def test_plain_training_has_the_cohorts_and_steps_of_the_private_one(tmp_path):
    plain, private, *_ = (variant.config.defense.model_dump() for variant in rung_sweep(tmp_path, 1000).variants)
    differing = {key for key in plain if plain[key] != private[key]}
    assert differing == {"noise_multiplier", "target_epsilon", "clip_norm"}


def test_the_reference_begins_as_the_base_model(tmp_path):
    write_models(tmp_path, base=4, reference=4, shape=SMALL)
    for name in ("base", "reference"):
        assert AutoConfig.from_pretrained(tmp_path / name).hidden_size == 16
    both = [(tmp_path / name / "tokenizer.json").read_bytes() for name in ("base", "reference")]
    assert both[0] == both[1]


@pytest.mark.slow
def test_a_small_ladder_is_run_and_printed(replicate, tmp_path, monkeypatch):
    monkeypatch.setattr(users, "AUDITED", 120)
    write_models(tmp_path / "ladder", base=10, reference=10)
    changes = [
        f"variants.{name}.defense.{key}" for name in ("plain", "uls-8", "uls-2") for key in ("steps=2", "cohort=9")
    ]
    overrides = [word for change in ("blocks=1", *changes) for word in ("--set", change)]
    code, out, err = replicate("users", "--out", tmp_path / "ladder", "--rung", 60, *overrides)
    assert code == 0, err
    (plain, *private) = read_ladder(tmp_path / "ladder" / "ladder.yaml")
    assert (plain.training, plain.users, plain.noise_multiplier) == ("plain", 60, 0.0)
    assert [(row.training, row.epsilon, len(row.gains)) for row in private] == [("uls", 2.0, 1), ("uls", 8.0, 1)]
    assert private[0].noise_multiplier > private[1].noise_multiplier > 0
    assert users.ladder_table((plain, *private)) in out
    assert (tmp_path / "ladder" / "users.svg").is_file()
