"""The page of a config's keys explains each key once, and refers to that place wherever a section shares keys."""

import re

import pytest

from docs.config_pages import config_page
from heldin.jobs.checkpoint.audit_config import CheckpointConfig
from heldin.planting.plant_config import PlantConfig
from heldin.stages.config_keys import blocks
from heldin.stages.run_config import RunConfig
from heldin.sweeps.sweep_config import SweepConfig
from tests.theory_tables import anchors


@pytest.mark.parametrize("config", [RunConfig, CheckpointConfig, PlantConfig, SweepConfig])
def test_every_key_is_on_the_page_and_links_lead_to_headings(config, tmp_path):
    listed = blocks(config)
    text = config_page(listed, "")
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    assert {key.name.rsplit(".", 1)[-1] for block in listed for key in block.keys} - {"kind"} <= set(
        re.findall(r"`([^`]+)`", text)
    )
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= set(anchors(page))


def test_a_key_that_sections_share_is_explained_once():
    text = config_page(blocks(), "")
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
    # Five sections filter users, three read a corpus, and two have a recipe.
    assert [rows.count(f"| `{name}`") for name in ("include", "mean_records", "weight_decay")] == [1, 1, 1]
    assert text.count("(#corpususers-") == 4
    assert text.count("(#corpussource-kind-jsonl") == 2
    assert text.count("(#finetune-") == 1
    # A default that differs from the one that is explained is stated.
    (of_recipe,) = [line for line in text.splitlines() if "(#finetune-" in line]
    assert re.search(r"`epochs` \(\w+ 3\)", of_recipe)


def test_dollar_signs_make_no_formula():
    assert r"\$NAME and \${NAME}" in config_page(blocks(), "")
