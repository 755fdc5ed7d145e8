"""The measurement that the guide for contributors shows works on a finished run, as `heldin verify` needs it to."""

import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from heldin.audit.coarse import LEAST_IN_GROUP
from heldin.base.progress import LineReporter
from heldin.models.logprobs import score_texts
from heldin.models.opening import load_language_model
from heldin.stages.measures.asked import measures_asked
from heldin.stages.measures.measure import MeasureFolder
from heldin.stages.run_config import load_config
from heldin.stages.sides.data import prepare_data, subjects_of_run
from tests.contracts.guide import GUIDE, example
from tests.refusals import refused

QUIET = LineReporter(lambda line: None)


PACKAGE = GUIDE.parents[1] / "examples" / "plugins" / "first_choice" / "heldin_first_choice.py"


def test_the_guide_shows_the_example_package():
    assert example("class FirstChoice(") == PACKAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("words", [("ruff", "check"), ("ruff", "format", "--check")])
def test_the_code_of_the_guide_is_in_style(words):
    subprocess.run([Path(sys.executable).with_name(words[0]), *words[1:], PACKAGE], check=True, capture_output=True)


@pytest.mark.slow
def test_the_code_of_the_guide_has_right_types_and_imports(tmp_path):
    """Also where it is a module of heldin's own, by the contracts on imports."""
    root = GUIDE.parents[1]
    subprocess.run([Path(sys.executable).with_name("mypy"), PACKAGE], check=True, capture_output=True, cwd=root)
    copy = shutil.copytree(root, tmp_path / "heldin", symlinks=True, ignore=_NOT_COPIED)
    shutil.copy(PACKAGE, copy / "stages" / "measures" / "first_choice.py")
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], capture_output=True, text=True, cwd=copy, env=environment)
    assert done.returncode == 0, done.stdout
    # The linter saw the copy: an import that no contract allows is found.
    with (copy / "stages" / "measures" / "first_choice.py").open("a", encoding="utf-8") as file:
        file.write("\nfrom heldin.stages.sides import ledger\n")
    again = subprocess.run([linter, "--no-cache"], capture_output=True, text=True, cwd=copy, env=environment)
    assert again.returncode != 0


_NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "tests", "docs", "benchmarks", "build", "runs", ".*_cache")


@pytest.fixture(scope="module")
def guide():
    """The module that the guide shows, under eighty lines of code."""
    code = example("class FirstChoice(")
    assert len([line for line in code.splitlines() if line.strip()]) < 80
    module = types.ModuleType("first_choice")
    sys.modules["first_choice"] = module
    exec(compile(code, str(GUIDE), "exec"), module.__dict__)
    return module


def test_the_measurement_of_the_guide_is_computed_once_and_then_read(guide, finished, tmp_path):
    config = load_config(finished / "config.yaml")
    data = prepare_data(config, finished, QUIET)
    model = load_language_model(str(finished / "checkpoints" / "final"))
    subjects = subjects_of_run(config, data)
    (measure,) = measures_asked({"first_choice": guide.FirstChoice()}, subjects, (model, model))
    made = MeasureFolder(tmp_path, QUIET).facts_of([measure], data.ledger.membership)
    read = MeasureFolder(tmp_path, QUIET, read_only=True).facts_of([measure], data.ledger.membership)
    assert made == read
    shares = MeasureFolder(tmp_path, QUIET, read_only=True).values_of(measure)
    # A slow twin: the first choice of each text alone.
    user = next(iter(shares))
    assert user not in data.canaries
    alone = [score_texts(model, [text], ranks=True)[0].ranks == 0 for text in measure.measure.texts[user]]
    assert shares[user] == pytest.approx(sum(map(sum, alone)) / sum(map(len, alone)))
    sides = list(data.ledger.membership().values())
    assert bool(made) is (min(sides.count(True), sides.count(False)) >= LEAST_IN_GROUP)
    # Of other texts it is another table, which a verification refuses.
    (fewer,) = measures_asked({"first_choice": guide.FirstChoice(texts_per_user=1)}, subjects, (model, model))
    with refused(by="MeasureFolder.values_of", naming="measure-first_choice.parquet'"):
        MeasureFolder(tmp_path, QUIET, read_only=True).values_of(fewer)
