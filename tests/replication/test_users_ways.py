"""Ways to spend one budget: what they share, the numbers they train, the published table, and a small run."""

from pathlib import Path

import pytest

from replication import users, users_ways
from replication.users import write_models
from replication.users_ways import NAMES, PICKED, public_file, read_ways, trained_numbers, ways_sweep, ways_table

PAGE = Path(__file__).parents[2] / "docs" / "users.md"
NOISELESS = ("plain", "clipped", "lora-plain")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    to = tmp_path_factory.mktemp("ways")
    write_models(to, base=10, reference=10)
    users_ways.write_public(to, people=10, of=20)
    return to


def test_ways_have_people_steps_cohort_and_epsilon_in_common(folder):
    variants = {variant.name: variant.config for variant in ways_sweep(folder, 600).variants}
    assert variants.keys() == NAMES.keys()
    assert {variant.group for variant in ways_sweep(folder, 600).variants} == {"plain"}
    uls = variants["uls"]
    for name, config in variants.items():
        keys = (
            "population",
            "cohort",
            "steps",
            "group_size",
            *([] if name in NOISELESS else ["target_epsilon"]),
        )
        assert [getattr(config.defense, key) for key in keys] == [getattr(uls.defense, key) for key in keys]
        assert (config.corpus, config.attack) == (uls.corpus, uls.attack)
        assert (config.defense.clip_norm == uls.defense.clip_norm) == (name not in ("plain", "lora-plain"))


def test_trained_numbers_are_those_of_the_layers(folder):
    variants = {variant.name: variant.config for variant in ways_sweep(folder, 600).variants}
    # A layer of width a x b has 4 (a + b) numbers at rank 4.
    assert trained_numbers(variants["lora-usual"], ()) == 4 * 4 * (48 + 48)
    assert trained_numbers(variants["lora-picked-1"], ["transformer.h.0.mlp.c_fc"]) == 4 * (48 + 192)
    assert trained_numbers(variants["uls"], ()) > 100_000


def test_people_who_pick_are_those_of_the_reference(folder):
    rows = public_file(folder).read_text(encoding="utf-8").splitlines()
    assert len(rows) == 10 * users.RECORDS


def test_the_page_prints_the_published_ways():
    assert ways_table(read_ways()) in PAGE.read_text(encoding="utf-8")


def test_published_ways_are_whole():
    ways = {way.name: way for way in read_ways()}
    assert ways.keys() == NAMES.keys()
    assert {len(way.gains) for way in ways.values()} == {len(way.aurocs) for way in ways.values()} == {3}
    assert {name for name, way in ways.items() if way.layers} == set(PICKED)


@pytest.mark.slow
def test_a_small_comparison_is_run_and_printed(replicate, folder, monkeypatch):
    monkeypatch.setattr(users, "AUDITED", 120)
    changes = [f"variants.{name}.defense.{key}" for name in NAMES for key in ("steps=2", "cohort=9")]
    overrides = [word for change in ("blocks=1", *changes) for word in ("--set", change)]
    code, out, err = replicate("users-ways", "--out", folder, "--rung", 60, *overrides)
    assert code == 0, err
    ways = read_ways(folder / "ways.yaml")
    assert ways_table(ways) in out
    assert {way.name: len(way.layers) for way in ways if way.layers} == {"lora-picked-1": 1, "lora-picked-4": 4}
