"""The server that transformers ships, with a tiny chat model: an audit through its chat endpoint."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from transformers import GenerationConfig
from transformers.utils.import_utils import is_serve_available

from heldin.record.document import read_record
from tests.refusals import names

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_serve_available(), reason="transformers serve needs fastapi, uvicorn and openai"),
]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def _save(lm, folder):
    lm.tokenizer.chat_template = TEMPLATE
    lm.tokenizer.save_pretrained(folder)
    lm.model.save_pretrained(folder)
    # Without this the server takes the likeliest token, whatever temperature is asked for.
    GenerationConfig(do_sample=True, top_k=0, eos_token_id=lm.model.config.eos_token_id).save_pretrained(folder)


@pytest.fixture
def url(make_lm, tmp_path):
    _save(make_lm(seed=1, context=256), tmp_path / "target")
    _save(make_lm(seed=0, context=256), tmp_path / "base")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["-m", "transformers.cli.transformers", "serve", str(tmp_path / "target"), "--device", "cpu"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (tmp_path / "serve.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, *command, "--port", str(port)], stdout=log, stderr=log, env=environment
        )
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"http://localhost:{port}/health", timeout=2)
                break
            except OSError:
                time.sleep(1)
        yield f"http://localhost:{port}/v1"
    finally:
        server.terminate()
        server.wait(timeout=20)


def _files(tmp_path, english):
    for number, name in enumerate(("in", "out")):
        rows = [{"user": f"{name} {i}", "text": " ".join(english[(number * 12 + i) * 3 :][:3])} for i in range(12)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return ["--held-in", tmp_path / "in.jsonl", "--held-out", tmp_path / "out.jsonl"]


def test_an_audit_through_its_chat_endpoint(call, url, english, tmp_path, monkeypatch):
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path / "cache"))
    few = ["attack.sampling.samples=3", "attack.sampling.tokens=8", "attack.sampling.cuts=[0.5]"]
    settings = [part for each in few for part in ("--set", each)]
    models = ["--model", tmp_path / "target", "--reference", tmp_path / "base"]
    files, out = _files(tmp_path, english), tmp_path / "audit"
    code, printed, err = call("audit-endpoint", url, "--chat", *models, *files, *settings, "--out", out)
    assert code == 0, err
    assert any(line.startswith("level: text") for line in err.splitlines())
    assert names(" ".join(printed.split()), "only text")
    record = read_record(out / "record.json")
    answers = record.target.endpoint.answers
    assert (answers.samples, answers.cuts, answers.refused, answers.top_k) == (72, 24, 0, 0)
    assert answers.same < answers.cuts / 2
    assert len({result.attack for result in record.attacks}) == 4
    code, printed, err = call("verify", out)
    assert (code, " 0 differ" in printed) == (0, True), printed + err
