"""Shared fixtures: a private cache, the real corpora where they are present, and tiny models with random weights."""

import copy
import functools
import gc
import hashlib
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import yaml
from filelock import FileLock
from typer.main import get_command

from tests.drafts import drafting, typesetting
from tests.refusals import Refusal

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach a hub


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """The suite runs in two processes; two threads in each would only get in each other's way."""
    import torch

    torch.set_num_threads(1)


class _Entropy:
    """A stream of its own for each name, in place of the operating system's entropy: no test fails by chance."""

    def __init__(self, name: str) -> None:
        self.name, self.calls = name, itertools.count()

    def token_bytes(self, size: int) -> bytes:
        return hashlib.shake_256(f"{self.name} {next(self.calls)}".encode()).digest(size)


@pytest.fixture(autouse=True)
def _fixed_keys(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Coins that depend on no name or place of a test: on the mark ``coins("NAME")`` if it has one."""
    marker = request.node.get_closest_marker("coins")
    monkeypatch.setattr("heldin.base.coins.secrets", _Entropy(marker.args[0] if marker else "a test"))


class _FixedKeysOfFixtures:
    """A plugin of its own: pytest asks no conftest.py below its root about fixtures of the whole session."""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("heldin.base.coins.secrets", _Entropy(fixturedef.argname))
            return (yield)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_FixedKeysOfFixtures())
    gc.set_threshold(50_000, 20, 20)  # importing torch and transformers alone takes seconds of collections otherwise


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and tests: trainers of other libraries collect garbage at every start."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this test run that all of its workers use."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def _not_forced_to_disk() -> Generator[None]:
    """No file of a test has to survive a machine that fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def _no_open_figures() -> Generator[None]:
    """No test sees a figure that pyplot kept open for an earlier one."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(scope="session", autouse=True)
def _shared_cache(shared_folder: Path) -> Generator[None]:
    """One cache for each test run: the tiny pre-trained models of the tests are made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELDIN_CACHE_DIR", str(shared_folder / "cache"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _drafts() -> Generator[None]:
    with drafting():
        yield


@pytest.fixture
def typeset() -> Generator[None]:
    """Reports are drawn and typeset, which takes a second each; other tests get drafts."""
    with typesetting():
        yield


MakeOnce = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def make_once(shared_folder: Path) -> MakeOnce:
    """``make_once(name, build)`` returns a folder that ``build`` filled, once for all workers of a test run.

    The folder may be read only: a test that changes it works on a copy. Coins depend on the name alone.
    """

    def make(name: str, build: Callable[[Path], None]) -> Path:
        folder, finished = shared_folder / name, shared_folder / f"{name}.finished"
        with FileLock(shared_folder / f"{name}.lock"):
            if not finished.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a worker whose build failed
                folder.mkdir()
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr("heldin.base.coins.secrets", _Entropy(name))
                    build(folder)
                finished.touch()
        return folder

    return make


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the real corpora; skips where they are absent."""
    folder = Path(os.environ.get("HELDIN_DATA_DIR") or SHARED_DATA)
    if not (folder / "enron_by_sender.jsonl.gz").is_file():
        pytest.skip("the real corpora are absent: set HELDIN_DATA_DIR")
    return folder


@pytest.fixture(scope="session")
def english() -> list[str]:
    """Some plain English, one sentence an item."""
    nouns = ["report", "meeting", "invoice", "garden", "engine", "letter", "window", "river", "story", "market"]
    verbs = ["finds", "moves", "opens", "writes", "keeps", "loses", "paints", "counts"]
    return [f"The {a} {v} the {b} on day {i}." for i, a in enumerate(nouns) for v in verbs for b in nouns]


@pytest.fixture(scope="session")
def make_lm(english: list[str]) -> Callable[..., object]:
    """Factory of tiny GPT-Neo language models with random weights and one shared tokenizer."""
    from heldin.base.files import text_sha256
    from heldin.models.loading import LanguageModel
    from heldin.models.model_config import TinyModel
    from heldin.models.tiny import new_tiny_model, train_tokenizer

    tokenizer = train_tokenizer(english, 400)

    def make(seed: int = 0, context: int = 32, layers: int = 2) -> LanguageModel:
        shape = TinyModel(vocabulary=400, context=context, hidden=32, layers=layers, heads=2, window=8)
        model = new_tiny_model(shape, tokenizer, seed).eval()
        return LanguageModel(model, tokenizer, f"tiny-{seed}", text_sha256(repr(shape), str(seed)))

    return make


SMALL = {
    "name": "small",
    "corpus": {
        "source": {"kind": "synthetic", "parameters": {"users": 60, "mean_records": 12, "min_records": 8, "seed": 3}},
        "users": {"min_records": 8, "max_users": 30},
    },
    "model": {
        "pretrain": {
            "max_records_per_user": 6,
            "shape": {"vocabulary": 400, "context": 48, "hidden": 32, "layers": 1, "heads": 2, "window": 16},
            "recipe": {"epochs": 1, "batch_size": 8, "learning_rate": 0.003, "sequence_length": 48, "select": "last"},
        }
    },
    "finetune": {
        "epochs": 2,
        "batch_size": 8,
        "learning_rate": 0.003,
        "sequence_length": 48,
        "evaluations": 2,
        "checkpoint_every": 20,
    },
    "attack": {"max_characters": 200},
    "audit": {"resamples": 200},
    "decision": {"redraws": 1000},
}

TRIAL = {
    "name": "trainings",
    "corpus": {
        "source": {"kind": "synthetic", "parameters": {"users": 14, "mean_records": 5, "min_records": 4, "seed": 3}},
        "users": {"min_records": 4, "fraction": 0.5},
    },
    "model": {
        "pretrain": {
            "max_records_per_user": 4,
            "shape": {"vocabulary": 400, "context": 24, "hidden": 16, "layers": 1, "heads": 2, "window": 8},
            "recipe": {"epochs": 2, "batch_size": 4, "learning_rate": 0.003, "sequence_length": 24, "select": "last"},
        }
    },
    "finetune": {
        "optimizer": "sgd",
        "momentum": 0.9,
        "learning_rate": 0.005,
        "sequence_length": 24,
        "select": "last",
    },
    "defense": {"kind": "uls", "population": 10, "cohort": 10, "steps": 6, "delta": 1e-5, "target_epsilon": 1},
    "audit": {"resamples": 100},
}


class Call:
    """Runs ``heldin ARGS`` in this process; ``refused`` checks the error that ended the last call."""

    refused: Refusal

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: str | Path) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error."""
        from heldin.commands import cli

        self._monkeypatch.setattr(sys, "argv", ["heldin", *map(str, arguments)])
        if "--check" in arguments:  # it would time steps of training for a second, as ``cost_of_run`` does in its tests
            self._monkeypatch.setattr("heldin.jobs.check.costs.SECONDS", 0.0)
            self._monkeypatch.setattr("heldin.sweeps.check_sweep.SECONDS", 0.0)
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = self._capsys.readouterr()
        self.refused = Refusal(caught.value, err)
        return int(caught.value.code or 0), out, err


@functools.cache
def _command_tree(app: Any) -> Any:
    """The commands of a typer application, which typer itself would build again at each call."""
    return get_command(app)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run ``heldin ARGS`` in this process: ``code, out, err = call(...)``, and ``call.refused(...)`` after it."""
    monkeypatch.setattr("typer.main.get_command", _command_tree)
    return Call(capsys, monkeypatch)


@pytest.fixture
def small_with(tmp_path: Path) -> Callable[..., Path]:
    """Writes SMALL with the users that a user-level epsilon allows, and with other sections; returns the file."""

    def write(**sections: object) -> Path:
        content: dict[str, Any] = copy.deepcopy(SMALL)
        content["corpus"]["users"] = {"min_records": 8, "fraction": 0.5}
        for name, its in sections.items():
            content[name] = {**content.get(name, {}), **its} if isinstance(its, dict) else its
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def small_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config file of the small run."""
    path = tmp_path_factory.mktemp("config") / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def finished(small_config: Path, make_once: MakeOnce) -> Path:
    """The folder of one finished small run with its report, typeset. Read only."""

    def build(folder: Path) -> None:
        from heldin.base.progress import LineReporter
        from heldin.jobs.run import run
        from heldin.stages.run_config import load_config
        from tests.pdf_pages import write_report

        run(
            load_config(small_config),
            folder / "small",
            LineReporter(lambda line: None),
            command="heldin run small.yaml",
        )
        with typesetting():
            write_report(folder / "small")

    return make_once("finished", build) / "small"
