"""The examples of the help pages, run in one folder as a newcomer would type them."""

import shlex
import shutil

import pytest

from heldin.commands.help import EXAMPLES
from heldin.models.opening import load_language_model
from tests.completions_server import CompletionsServer, serving

BEFORE = {  # what a reader of the page has done before: the file that a command reads
    "audit": ["heldin init audit"],
    "sweep": ["heldin init run", "heldin init sweep"],
    "compare": ["heldin run example/run.yaml"],
    "account": ["heldin run uls.yaml"],
}
ANSWERS = {"audit": (0, 8), "audit-planted": (0, 3, 4), "bound": (0, 3, 4), "sweep": (0, 3)}


@pytest.mark.slow
def test_every_example_runs_as_printed(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # A cache of its own: an example clears one, and refuses while another worker's test scores into the shared one.
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("heldin.commands.finished.confirm", lambda *_, **__: None)
    for name, lines in EXAMPLES.items():
        for line in [*BEFORE.get(name, []), *lines]:
            if name == "demo":
                continue  # tests/sweeps/test_demo.py runs it
            if name == "purge":
                shutil.copytree("runs/two-epochs", "runs/kept")
            if name == "audit-endpoint":
                code, err = _served(call, line)
            else:
                code, _, err = call(*shlex.split(line)[1:])
            assert code in ANSWERS.get(name, (0,)), (line, code, err)


def _served(call, line):
    target, base = (load_language_model(f"example/{name}") for name in ("model", "base"))
    server = CompletionsServer({"model": target, "base": base}, length=target.context + 2)
    with serving(server) as url:
        code, _, err = call(*shlex.split(line.replace("http://localhost:8000/v1", url))[1:])
    return code, err
