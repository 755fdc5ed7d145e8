"""The core is what `heldin audit` of two files loads: its size, what is outside of it, and the depth of imports.

The whole is limited, and no file: a limit on files makes many small ones.
"""

import ast
import importlib
import importlib.util
import json
from collections import Counter
from pathlib import Path

import pytest
import yaml
from radon.complexity import cc_visit_ast

from heldin.base.progress import LineReporter
from heldin.jobs.example import write_example
from tests.conftest import SMALL
from tests.planted_sets import save_base

_SPEC = importlib.util.spec_from_file_location("size", Path(__file__).parents[2] / "benchmarks" / "size.py")
size = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(size)

# Each limit is what was reached, rounded up. A change that needs more says why where it raises one.
# Of the core, 1,200 lines read files as people have them: JSON arrays value by value, delimiters, encodings, dotted
# names, faults with a remedy each, skipped rows of each group up to page one. 500 count flagged people with exact
# limits, and tell limits and advice on every surface. 300 are help pages and tables that fit a terminal. 200 carry what
# counts of a text from a column of the source to the loss. 170 are adapters, formats of weights and precisions. 50 let
# sources and references say of themselves what they read and load. 500 find kinds by name, ours and those of packages,
# and hold their code to what a record names. 1,000 were imported in functions before: formats of weights and of
# corpora, bases of adapters, float32 samples, the curves of a plan. 1,100 read rows of turns: their forms, the chat
# template with the places of turns in its text, and what of them is scored. 100 say which of two forms is read, and
# why a cell holds no messages. 50 look for turns of a training file. 350 read preference pairs, score both answers and
# say what was compared. 1,500 are attackers who see less than log-probabilities: levels and their share of alpha, cuts,
# sampling, kept answers, statistics of samples, and what page one says of whom. 350 are
# the plans of banded noise: groups of users, C and its errors, the choice of bands. Two modules are the published
# ladder of users and its sentences. Four modules let public users pick the layers that are trained.
# 100 are docstrings in whole sentences.
MOST_MODULES, MOST_DEPTH, MOST_CORE_LINES = 484, 20, 28_200
# Import statements of heldin's own modules within functions, for what few commands need: torch behind keys of a config,
# endpoints, adapters, shards, rare formats. The depth counts them too.
MOST_IMPORTS_IN_FUNCTIONS, MOST_DEPTH_WITH_THEM = 20, 25
MOST_LINES = 60  # of a function's body
# Test functions that a change of a sentence may break, by the count of benchmarks/size.py.
MOST_TIED_TO_WORDING = 15
# Files of tests that use private names of heldin, by the count of benchmarks/size.py.
MOST_WITH_PRIVATE_NAMES = 15

# Parts that plug in where they are used. ``endpoint`` and the like are words in names of modules.
OUTSIDE = ("white_box", "heldin.planting", "jobs.retraining", "endpoint", "sweeps", "cluster", "shard", "rehearsal")
# The keys of a config and the type of a mention are read by every run.
KEYS_OF_ENTITIES = {"heldin.corpus.entities", "heldin.corpus.entities.config", "heldin.corpus.entities.spans"}


def _outside(modules):
    return sorted(
        name
        for name in modules
        if any(part in name for part in OUTSIDE) or (".entities" in name and name not in KEYS_OF_ENTITIES)
    )


@pytest.fixture(scope="module")
def loaded(make_lm, make_once):
    """Modules that a process has loaded after an audit of two files, and after a run."""

    def build(folder):
        files = folder / "files"
        write_example(files, users=20, reporter=LineReporter(lambda line: None))
        save_base(make_lm(), files / "base")
        save_base(make_lm(seed=1), files / "model")
        # As short as a run can be: what it loads does not depend on the length. With enough users that the coins, which
        # are the operating system's, leave no side empty.
        short = {**SMALL, "finetune": {**SMALL["finetune"], "epochs": 1, "evaluations": 1}}
        (folder / "config.yaml").write_text(yaml.safe_dump(short), encoding="utf-8")
        run = ["run", str(folder / "config.yaml"), "--out", str(folder / "run")]
        modules = size.loaded_modules([size.audit_words(files), run])
        (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")

    return json.loads((make_once("loaded modules", build) / "modules.json").read_text(encoding="utf-8"))


def test_an_audit_of_two_files_loads_the_core_alone(loaded):
    of_audit = loaded[0]
    assert _outside(of_audit) == []
    assert not [
        name for name in of_audit if name.startswith(("heldin.finetune", "heldin.stages.train", "heldin.canaries"))
    ]
    # What it does is loaded: an empty list would pass any limit.
    assert {"heldin.jobs.checkpoint.audit", "heldin.reports.typesetting", "heldin.bounds.one_run"} <= set(of_audit)
    assert size.lines_of([path for name in of_audit if (path := size.file_of(name)) is not None]) <= MOST_CORE_LINES


def test_a_plain_run_loads_no_part_that_plugs_in(loaded):
    of_run = loaded[1]
    assert _outside(of_run) == []
    assert {"heldin.jobs.run", "heldin.finetune.loop", "heldin.reports.typesetting"} <= set(of_run)


def test_the_whole_is_limited():
    files = size.product_files()
    assert len(files) <= MOST_MODULES
    assert size.import_depth() <= MOST_DEPTH
    assert size.import_depth(in_functions=True) <= MOST_DEPTH_WITH_THEM
    # Fields of records and of configs that read as what they are: ``users`` of how many, mentions that were found.
    assert size.uses_of_names(files) <= Counter({"of": 3, "found": 1})
    assert size.names_of_several_classes(files) == []


def test_few_imports_are_in_functions_and_none_hides_a_circle():
    own, _ = size.imports_in_functions()
    assert len(own) <= MOST_IMPORTS_IN_FUNCTIONS, own
    assert size.import_circles() == []


def test_a_circle_through_an_import_in_a_function_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(size, "ROOT", tmp_path)
    (tmp_path / "base").mkdir()
    files = {
        "one": "from heldin.base import two\n\ndef f():\n    import numpy\n",
        "two": "def f():\n    def g():\n        from heldin.base.one import f\n",
        "three": "import heldin.base.one\n",
    }
    for name, code in files.items():
        (tmp_path / "base" / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(size, "product_files", lambda: sorted((tmp_path / "base").glob("*.py")))
    assert size.imports_in_functions() == (["base/two.py:3"], ["base/one.py:4"])
    assert size.import_circles() == [["heldin.base.one", "heldin.base.two"]]
    assert (size.import_depth(), size.import_depth(in_functions=True)) == (3, 2)


def test_no_function_is_complex_or_long():
    """Complexity as radon counts; a body without its docstring."""
    trees = {path: size.tree_of(path) for path in size.product_files()}
    blocks = {path: cc_visit_ast(tree) for path, tree in trees.items()}
    complex_ones = [(path, b.name, b.complexity) for path, found in blocks.items() for b in found if b.complexity > 20]
    assert complex_ones == []
    functions = (
        (path, node)
        for path in trees
        for node in size.nodes_of(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    long_ones = [(path, node.name, lines) for path, node in functions if (lines := _lines_of_body(node)) > MOST_LINES]
    assert long_ones == []


def _lines_of_body(function):
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def test_few_tests_are_tied_to_wording():
    tied = size.tests_tied_to_wording()
    assert len(tied) <= MOST_TIED_TO_WORDING, tied


@pytest.mark.parametrize(
    ("test", "tied"),
    [
        ("with pytest.raises(InputError, match='the file is damaged'): pass", True),
        ("assert 'the file is damaged' in err", True),
        ("assert err.startswith('the file is damaged')", True),
        ("for said in ['the file is damaged']:\n        assert said in err", True),
        ("assert names(err, 'mail.jsonl', 'line 2')", False),
        ("assert 'mail.jsonl line 2: ' in err", False),
        ("assert len(read('a text that somebody wrote')) == 5", False),
        ("write('a text that somebody wrote')", False),
    ],
)
def test_what_ties_a_test_to_wording(tmp_path, monkeypatch, test, tied):
    monkeypatch.setattr(size, "ROOT", tmp_path)
    (tmp_path / "tests" / "base").mkdir(parents=True)
    file = tmp_path / "tests" / "base" / "test_one.py"
    file.write_text(f"def test_one():\n    {test}\n", encoding="utf-8")
    assert size.tests_tied_to_wording() == (["tests/base/test_one.py::test_one"] if tied else [])


@pytest.mark.parametrize(("content", "tied"), [("the file is damaged", True), ("mail.jsonl", False)])
def test_a_parameter_ties_where_it_is_compared(tmp_path, monkeypatch, content, tied):
    monkeypatch.setattr(size, "ROOT", tmp_path)
    (tmp_path / "tests" / "base").mkdir(parents=True)
    decorator = f"@pytest.mark.parametrize(('said', 'given'), [({content!r}, 'a text that somebody wrote')])"
    lines = [decorator, "def test_one(said, given):", "    assert said in err(given)"]
    (tmp_path / "tests" / "base" / "test_one.py").write_text("\n".join(lines), encoding="utf-8")
    assert bool(size.tests_tied_to_wording()) is tied


def test_few_tests_use_private_names():
    using = size.files_that_use_private_names()
    assert len(using) <= MOST_WITH_PRIVATE_NAMES, using


@pytest.mark.parametrize(
    ("test", "used"),
    [
        ("from heldin.base.one import _hidden", ["_hidden"]),
        ("from heldin.base import one\nassert one._hidden() == 1", ["_hidden"]),
        ("monkeypatch.setattr('heldin.base.one._hidden', 1)", ["_hidden"]),
        ("monkeypatch.setattr(one, '_hidden', 1)", ["_hidden"]),
        ("assert made.state._kept == 1", ["_kept"]),
        ("def _hidden(): pass\n_hidden()", []),
        ("from other import _hidden", []),
        ("assert made._of_another_library == 1", []),
        ("with refused(by='_hidden'): pass", []),
        ("from heldin.base.one import shown", []),
    ],
)
def test_what_uses_a_private_name(tmp_path, monkeypatch, test, used):
    monkeypatch.setattr(size, "ROOT", tmp_path)
    monkeypatch.setattr(size, "product_files", lambda: [tmp_path / "one.py"])
    (tmp_path / "one.py").write_text("def _hidden(): self._kept = 1\ndef shown(): pass\n", encoding="utf-8")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text(test, encoding="utf-8")
    assert size.files_that_use_private_names() == ({"tests/test_one.py": used} if used else {})


def _names_that_are_gone(nodes):
    """Yield names that code takes from heldin and that are not there."""
    modules = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "heldin":
            source = importlib.import_module(node.module)
            for alias in node.names:
                try:
                    modules[alias.asname or alias.name] = importlib.import_module(f"{node.module}.{alias.name}")
                except ModuleNotFoundError:
                    if not hasattr(source, alias.name):
                        yield f"{node.module}.{alias.name}"
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module is not None and not hasattr(module, node.attr):
                yield f"{module.__name__}.{node.attr}"


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "replication", "examples"])
def test_code_that_seldom_runs_names_what_is_there(folder):
    """Slow tests, tests on a GPU and benchmarks notice a new name weeks later."""
    paths = sorted((size.ROOT / folder).rglob("*.py"))
    assert paths
    assert {str(path): gone for path in paths if (gone := sorted(_names_that_are_gone(size.nodes_of(path))))} == {}


def test_a_name_that_is_gone_is_seen():
    code = "from heldin.bounds import verdict\nfrom heldin.bounds.design import Gone\nverdict.Claim, verdict.Lost"
    assert list(_names_that_are_gone(list(ast.walk(ast.parse(code))))) == [
        "heldin.bounds.design.Gone",
        "heldin.bounds.verdict.Lost",
    ]
