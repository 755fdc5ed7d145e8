"""The way of a person who trains with a script of their own: plant, train, audit, as the page says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from heldin.base.progress import LineReporter
from heldin.jobs.example import write_example
from heldin.jobs.planted.config import parse_plant
from tests.pdf_pages import pages

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "trainer.py"


def test_the_script_of_the_example_knows_nothing_of_heldin_and_is_short():
    text = SCRIPT.read_text(encoding="utf-8")
    code = text.split('"""', 2)[2]
    assert "heldin" not in code
    assert 30 <= len(text.splitlines()) <= 60


def test_the_example_plan_is_a_valid_one(monkeypatch):
    content = yaml.safe_load((ROOT / "examples" / "plant.yaml").read_text(encoding="utf-8"))
    monkeypatch.setenv("HELDIN_DATA_DIR", "data")
    assert parse_plant(content, "plant.yaml").attack.documents == ("training", "fresh")


@pytest.mark.slow
def test_a_training_by_transformers_trainer_is_certified_from_plant_to_pdf(call, tmp_path):
    write_example(tmp_path / "example", users=300, models=True, reporter=LineReporter(lambda line: None))
    base = tmp_path / "example" / "base"
    content = {
        "training": str(tmp_path / "example" / "corpus.jsonl"),
        "columns": {"user": "author", "text": "body", "id": "id"},
        "reference": str(base),
        "users": {"min_records": 6},
        "sequence_length": 64,
        "canaries": [{"kind": "rare_phrase", "users": 20, "documents": [1, 8]}],
        "attack": {"primary": "likelihood-ratio-per-token", "documents": ["training"], "max_characters": 300},
    }
    (tmp_path / "plant.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    code, out, _ = call("plant", tmp_path / "plant.yaml", "--out", tmp_path / "planted", "--json")
    assert code == 0
    training = json.loads(out)["training"]
    words = [
        training,
        str(base),
        str(tmp_path / "model"),
        "--column",
        "body",
        "--epochs",
        "8",
        "--learning-rate",
        "2e-3",
    ]
    own = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, str(SCRIPT), *words], env=own, check=True, capture_output=True)
    asked = ("audit", "--planted", tmp_path / "planted", "--model", tmp_path / "model", "--declared-by", "R. Signer")
    code, out, _ = call(*asked, "--claim", "epsilon=0.05,delta=1e-5,unit=user", "--json")
    found = json.loads(out)
    assert code == 3
    assert found["decision"]["decision"]["answer"] == "leaks"
    certified = [b for b in found["judgement"]["bounds"] if b["standing"] == "certified"]
    assert max(b["epsilon_lower"] for b in certified) > 0
    page = " ".join(page.text for page in pages(tmp_path / "planted" / "audits" / "1" / "report.pdf"))
    assert "What certified statements rest on" in page
    assert "by R. Signer" in page
    assert call("verify", tmp_path / "planted" / "audits" / "1")[0] == 0
