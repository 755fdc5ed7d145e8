"""The way of a person who trains with a script of their own: plant, train, audit, as the page says."""

import importlib.util
import json
import os
import random
import re
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest
import yaml
from transformers import AutoTokenizer

from heldin.base.progress import LineReporter
from heldin.jobs.example import write_example
from heldin.models.model_config import TinyModel
from heldin.models.tiny import new_tiny_model, train_tokenizer
from heldin.planting.plant_config import parse_plant
from heldin.record.document import read_record
from heldin.reports.record_report import SECTIONS
from tests.pdf_pages import pages
from tests.planted_sets import read_lines, train

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "trainer.py"


@pytest.mark.parametrize(
    ("script", "mentions"),  # of heldin: the import and the callback, or nothing
    [("trainer.py", 2), ("trl_lora.py", 0), ("qlora.py", 0), ("opacus_dp.py", 0), ("serve.py", 0)],
)
def test_the_scripts_of_the_examples_know_little_of_heldin_and_are_short(script, mentions):
    text = (SCRIPT.parent / script).read_text(encoding="utf-8")
    code = text.split('"""', 2)[2]
    assert len(re.findall(r"heldin\b(?! plant)", code)) == mentions
    assert 30 <= len(text.splitlines()) <= 60


def test_the_example_plan_is_a_valid_one(monkeypatch):
    content = yaml.safe_load((ROOT / "examples" / "plant.yaml").read_text(encoding="utf-8"))
    monkeypatch.setenv("HELDIN_DATA_DIR", "data")
    assert parse_plant(content, "plant.yaml").attack.documents == ("training", "fresh")


def _trained(script, *words, folder):
    own = {**os.environ, "HF_HOME": str(folder / "hf"), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT.parent / script), *map(str, words)], env=own, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.long
@pytest.mark.slow
def test_a_training_by_transformers_trainer_is_certified_from_plant_to_pdf(call, tmp_path):
    write_example(tmp_path / "example", users=300, models=True, reporter=LineReporter(lambda line: None))
    base = tmp_path / "example" / "base"
    content = {
        "training": str(tmp_path / "example" / "corpus.jsonl"),
        "columns": {"user": "author", "text": "body", "id": "id"},
        "reference": str(base),
        "evidence": "declared",  # behind an endpoint nobody sees which weights answer
        "users": {"min_records": 6},
        "sequence_length": 64,
        "canaries": [{"kind": "rare_phrase", "users": 20, "documents": [1, 8]}],
        "attack": {"primary": "likelihood-ratio-per-token", "documents": ["training"], "max_characters": 300},
        "looks": 2,
    }
    (tmp_path / "plant.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    code, out, _ = call("plant", tmp_path / "plant.yaml", "--out", tmp_path / "planted", "--json")
    assert code == 0
    training = json.loads(out)["training"]
    more = ("--column", "body", "--epochs", 8, "--learning-rate", 2e-3, "--planted", tmp_path / "planted")
    _trained("trainer.py", training, base, tmp_path / "model", *more, folder=tmp_path)
    asked = ("audit-planted", tmp_path / "planted", "--model", tmp_path / "model", "--declared-by", "R. Signer")
    code, out, _ = call(*asked, "--claim", "epsilon=0.05,delta=1e-5,unit=user", "--json")
    found = json.loads(out)
    assert code == 3
    assert found["decision"]["decision"]["answer"] == "leaks"
    known = {its["name"]: its["known_by"] for its in found["planted"]["conditions"]}
    assert known["given_every_row"] == "checked"
    certified = [b for b in found["judgement"]["bounds"] if b["standing"] == "certified"]
    assert max(b["epsilon_lower"] for b in certified) > 0
    page = " ".join(page.text for page in pages(tmp_path / "planted" / "audits" / "1" / "report.pdf"))
    (conditions,) = (entry.title for entry in SECTIONS if entry.key == "conditions")
    assert conditions in page
    assert "by R. Signer" in page
    assert call("verify", tmp_path / "planted" / "audits" / "1")[0] == 0
    # Served, the same model is another look, and gives the same numbers up to rounding.
    with _served(tmp_path / "model") as url:
        at = (
            "--endpoint",
            url,
            "--model",
            "tuned",
            "--set",
            f"tokenizer={tmp_path / 'model'}",
            "--declared-by",
            "R. Signer",
        )
        claim = ("--claim", "epsilon=0.05,delta=1e-5,unit=user")
        code, out, _ = call("audit-planted", tmp_path / "planted", *at, *claim, "--json")
    served = json.loads(out)
    assert (code, Path(served["folder"]).name) == (3, "2")
    lower = [max(b["epsilon_lower"] for b in its["judgement"]["bounds"]) for its in (found, served)]
    assert lower[1] == pytest.approx(lower[0], abs=0.1)


@contextmanager
def _served(model):
    """The example's server with a model, until it is no longer needed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, str(SCRIPT.parent / "serve.py"), str(model), "--port", str(port)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        url = f"http://127.0.0.1:{port}/v1"
        try:
            for _ in range(240):
                with suppress(httpx2.HTTPError):
                    httpx2.get(f"{url}/models")
                    break
                assert server.poll() is None, "the server ended"
                time.sleep(0.5)
            yield url
        finally:
            server.kill()


# The assistant's turns are marked for TRL, which counts the loss on them alone.
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ': ' }}{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] }}{% endgeneration %}{% else %}{{ m['content'] + '\\n' }}{% endif %}{% endfor %}"
)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL (the extra 'trainers') is missing")
def test_a_lora_adapter_by_trl_on_the_assistants_turns_is_certified(call, tmp_path):
    write_example(tmp_path / "example", users=300, models=True, reporter=LineReporter(lambda line: None))
    base = tmp_path / "example" / "base"
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(base)
    chats = tmp_path / "chats.jsonl"
    with chats.open("w", encoding="utf-8") as file:
        for line in (tmp_path / "example" / "corpus.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            asked, answered = row["body"][:20], row["body"][20:] or "yes"
            turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
            file.write(json.dumps({"author": row["author"], "messages": turns}) + "\n")
    content = {
        "training": str(chats),
        "columns": {"user": "author", "messages": "messages"},
        "reference": str(base),
        "evidence": "declared",
        "users": {"min_records": 6},
        "sequence_length": 64,
        "canaries": [{"kind": "rare_phrase", "users": 30, "documents": [8]}],
        "attack": {"primary": "likelihood-ratio-per-token", "documents": ["training"], "max_characters": 300},
    }
    (tmp_path / "plant.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    code, out, _ = call("plant", tmp_path / "plant.yaml", "--out", tmp_path / "planted", "--json")
    assert code == 0
    more = ("--epochs", 8, "--learning-rate", 1e-2)
    _trained("trl_lora.py", json.loads(out)["training"], base, tmp_path / "adapter", *more, folder=tmp_path)
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()
    asked = ("audit-planted", tmp_path / "planted", "--model", tmp_path / "adapter", "--declared-by", "R. Signer")
    code, out, _ = call(*asked, "--claim", "epsilon=0.05,delta=1e-5,unit=user", "--json")
    found = json.loads(out)
    certified = [b["epsilon_lower"] for b in found["judgement"]["bounds"] if b["standing"] == "certified"]
    assert (code, found["decision"]["decision"]["answer"], max(certified) > 0) == (3, "leaks", True)


def _base_with_words_that_nobody_says(folder, texts):
    """A tiny model whose vocabulary has words that its texts lack, as every large vocabulary has."""
    dice = random.Random(0)
    invented = ["".join(dice.choice("bdfgklmnprstvz") + dice.choice("aeiou") for _ in range(4)) for _ in range(1600)]
    # The words of the texts are said more often, so that these are the latest merges.
    tokenizer = train_tokenizer([*texts, *texts, *(f"x {word}" for word in invented for _ in range(3))], 4000)
    model = new_tiny_model(TinyModel(len(tokenizer), context=64, hidden=48, layers=2, heads=2, window=32), tokenizer, 0)
    model.save_pretrained(folder / "fresh")
    tokenizer.save_pretrained(folder / "fresh")
    return train(folder / "fresh", texts, folder / "base", passes=2)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("opacus") is None, reason="Opacus (the extra 'trainers') is missing")
def test_examples_sold_as_users_are_caught_from_outside_and_what_opacus_promises_is_not(call, tmp_path):
    write_example(tmp_path / "example", users=40, reporter=LineReporter(lambda line: None))
    texts = [row["body"] for row in read_lines(tmp_path / "example" / "corpus.jsonl")]
    base = _base_with_words_that_nobody_says(tmp_path, texts[: len(texts) // 2])
    # Of two kinds, since those of a kind are judged together, and one document leaves a noisier score than many.
    # 32 documents tell all held-in users from all others, whatever the processor rounds; 16 leave an error or two.
    canaries = [
        {"kind": "unseen_token", "users": 200, "documents": [32], "signature_tokens": 2, "disjoint": True},
        {"kind": "rare_phrase", "users": 80, "documents": [1]},
    ]
    content = {
        "training": str(tmp_path / "example" / "corpus.jsonl"),
        "columns": {"user": "author", "text": "body", "id": "id"},
        "reference": str(base),
        "evidence": "declared",
        "sequence_length": 24,
        "split": {"canaries_only": True},
        "canaries": canaries,
        "attack": {"names": ["loss"], "primary": "loss", "documents": ["training"], "max_characters": 100},
    }
    (tmp_path / "plant.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    code, out, _ = call("plant", tmp_path / "plant.yaml", "--out", tmp_path / "planted", "--json")
    assert code == 0
    more = ("--column", "body", "--epsilon", 2, "--batch", 800, "--learning-rate", 1e-2, "--tokens", 24)
    said = _trained("opacus_dp.py", json.loads(out)["training"], base, tmp_path / "private", *more, folder=tmp_path)
    (mechanism,) = [line for line in said.splitlines() if line.startswith("noise_multiplier=")]
    claims = ("epsilon=2,delta=1e-5,unit=user", f"{mechanism},unit=example")
    asked = ("audit-planted", tmp_path / "planted", "--model", tmp_path / "private", "--declared-by", "R. Signer")
    code, out, _ = call(*asked, *(word for claim in claims for word in ("--claim", claim)), "--json")
    verdicts = read_record(tmp_path / "planted" / "audits" / "1" / "record.json").judgement.verdicts
    sold = [verdict for verdict in verdicts if str(verdict.claim) == "epsilon 2 at delta 1e-05"]
    of_32 = next(verdict for verdict in sold if "unseen-token" in str(verdict.subjects))
    # Users of 32 documents have no epsilon of 2: exit code 3.
    assert (code, of_32.outcome, of_32.standing) == (3, "contradicted", "certified")
    # One document has it, and users of 32 have what the accountant leaves them.
    true = [verdict for verdict in verdicts if verdict not in sold]
    assert any("per example" in str(verdict.claim) for verdict in true)
    assert any("32 examples" in str(verdict.claim) for verdict in true)
    assert "contradicted" not in {verdict.outcome for verdict in true}


@pytest.mark.slow
@pytest.mark.long
def test_an_adapter_on_a_base_of_4_bits_is_certified_in_4_bits(call, tmp_path):
    write_example(tmp_path / "example", users=60, models=True, reporter=LineReporter(lambda line: None))
    base = tmp_path / "example" / "base"
    content = {
        "training": str(tmp_path / "example" / "corpus.jsonl"),
        "columns": {"user": "author", "text": "body", "id": "id"},
        "reference": str(base),
        "evidence": "declared",
        "sequence_length": 64,
        "split": {"canaries_only": True},
        "canaries": [{"kind": "rare_phrase", "users": 60, "documents": [16]}],
        "attack": {
            "primary": "likelihood-ratio-per-token",
            "documents": ["training"],
            "training_documents": 2,
            "max_characters": 200,
            "precision": "nf4",
        },
    }
    (tmp_path / "plant.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    code, out, _ = call("plant", tmp_path / "plant.yaml", "--out", tmp_path / "planted", "--json")
    assert code == 0
    more = ("--column", "body", "--epochs", 10, "--learning-rate", 1e-2, "--tokens", 64)
    _trained("qlora.py", json.loads(out)["training"], base, tmp_path / "adapter", *more, folder=tmp_path)
    asked = ("audit-planted", tmp_path / "planted", "--model", tmp_path / "adapter", "--declared-by", "R. Signer")
    code, out, _ = call(*asked, "--claim", "epsilon=0.05,delta=1e-5,unit=user", "--json")
    found = json.loads(out)
    certified = [b["epsilon_lower"] for b in found["judgement"]["bounds"] if b["standing"] == "certified"]
    assert (code, found["decision"]["decision"]["answer"], max(certified) > 0) == (3, "leaks", True)
    record = json.loads((tmp_path / "planted" / "audits" / "1" / "record.json").read_text(encoding="utf-8"))
    assert (record["measures"]["precision"]["precision"], record["measures"]["precision"]["values"]) == ("nf4", 32)
