"""Every help page at 80 columns: the words for values, the form of defaults, the length, and files and folders."""

import contextlib
import importlib
import inspect
import io
import re
import typing
from pathlib import Path

import pytest
import typer.main

from docs.made_pages import cli_page
from heldin.commands import cli
from heldin.commands.audit import KEYS_OF_OPTIONS
from heldin.commands.help import PLACEHOLDERS, describe
from heldin.jobs.checkpoint.audit_config import CheckpointConfig, EndpointConfig

SHORT = {"audit", "run", "sweep", "plant", "audit-planted", "report"}
# Texts are a file or a folder, such as a maildir or a saved data set.
EITHER = {"plans", "paths", "held_in", "held_out", "training", "public_texts"}


def _leaves(command, name=""):
    for key, below in command.commands.items():
        dotted = f"{name} {key}".strip()
        yield from _leaves(below, dotted) if hasattr(below, "commands") else [(dotted, below)]


APP = typer.main.get_command(cli.app)
COMMANDS = dict(_leaves(APP))
PAGES = {"": APP, **COMMANDS, "corpus": APP.commands["corpus"]}
for _name, _command in PAGES.items():
    describe(_command, f"heldin {_name}".strip())


@pytest.fixture(scope="module")
def page():
    """The page of a command as a terminal of 80 columns has it."""
    found = {}

    def shown(name, option="--help"):
        if (name, option) not in found:
            with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
                patch.setattr("typer.rich_utils.MAX_WIDTH", 80)
                patch.setattr("sys.argv", ["heldin", *name.split(), option])
                with contextlib.suppress(SystemExit):
                    cli.main()
            found[name, option] = out.getvalue()
        return found[name, option]

    return shown


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_a_screen(page, name):
    lines = page(name).rstrip().splitlines()
    assert len(lines) > 10
    assert max(map(len, lines)) <= 80
    assert len(lines) <= (50 if name in SHORT else 58)


@pytest.mark.parametrize("name", PAGES)
def test_values_are_named_by_one_of_a_few_words(page, name):
    text = page(name, "--help-all" if PAGES[name].rare else "--help")
    for parameter in PAGES[name].params:
        if parameter.name not in ("install_completion", "show_completion"):  # typer's, on the page alone
            allowed = ("",) if getattr(parameter, "is_flag", False) else PLACEHOLDERS
            assert parameter.metavar in allowed, parameter.name
    # No type, no range and no list of choices is printed with them.
    boxes = " ".join(line for line in text.splitlines() if line.startswith("│"))
    assert not re.search(r"<[\w|\[\]-]+>|\[x[<>]|\b\w+\|\w+\|", boxes)


@pytest.mark.parametrize("name", PAGES)
def test_a_default_has_one_form(page, name):
    text = page(name, "--help-all" if PAGES[name].rare else "--help").replace("│", " ")
    assert not re.search(r"\[default|[^(]default:|\(default[^:]", text)
    for parameter in PAGES[name].params:
        if parameter.default not in (None, False) and not callable(parameter.default):
            assert str(getattr(parameter.default, "value", parameter.default)) in _default(parameter)


def _default(option):
    (stated,) = re.findall(r"\(default: (.+?)\)\.", option.help)
    return stated


def test_defaults_of_an_audit_are_those_of_its_config():
    """These options have no default of their own, so their help texts repeat that of the config."""
    fields = {**CheckpointConfig.model_fields, **{f"endpoint.{k}": f for k, f in EndpointConfig.model_fields.items()}}
    compared = set()
    for command in ("audit", "audit-endpoint"):
        for option in COMMANDS[command].params:
            field = fields.get(KEYS_OF_OPTIONS.get(option.name, option.name))
            flag = getattr(option, "is_flag", False)  # off by default, as all are
            if field is not None and not (flag or field.is_required()) and isinstance(field.default, str | int | float):
                compared.add(option.name)
                plain = getattr(field.default, "value", field.default)
                assert _default(option) == (plain if isinstance(plain, str) else f"{plain:g}"), option.name
    assert compared >= {"assignment", "seed", "concurrency", "timeout", "max_tries"}
    columns = CheckpointConfig.model_fields["columns"].get_default(call_default_factory=True)
    stated = {option.name: option for option in COMMANDS["audit"].params}
    assert [_default(stated[name]) for name in ("user", "text")] == [columns.user, columns.text]
    attack = CheckpointConfig.model_fields["attack"].get_default(call_default_factory=True)
    assert (attack.precision, _default(stated["dtype"])[:4]) == (None, "fp32")


@pytest.mark.parametrize("name", PAGES)
def test_every_option_is_on_the_whole_page_in_the_documentation_and_in_completion(page, name):
    command = PAGES[name]
    shown = {option for option in command.params if option.param_type_name == "option" and option.name != "help_all"}
    rare = set(command.rare)
    whole, short, documented = page(name, "--help-all" if rare else "--help"), page(name), cli_page()
    for option in shown:
        long = next(text for text in option.opts if text.startswith("--"))
        assert re.search(rf"│.* {long} ", whole), long
        assert bool(re.search(rf"│.* {long} ", short)) is (option not in rare), long
        # In completion and in the documentation all are listed.
        assert not option.hidden
        assert name == "" or f"{long}" in documented
    last = short.rstrip().splitlines()[-1].strip()
    more = re.fullmatch(rf"(\d+) more options?: {f'heldin {name}'.strip()} --help-all", last)
    assert (int(more[1]) if more else 0) == len(rare)


def _paths():
    """Every parameter that takes a path: command, parameter, and whether files and folders are accepted."""
    for name, command in COMMANDS.items():
        hints = typing.get_type_hints(inspect.unwrap(command.callback), include_extras=True)
        for parameter in command.params:
            hint = hints.get(parameter.name)
            origin = getattr(hint, "__origin__", None)
            if origin is not None and Path in (origin, *_parts(origin)):
                (info,) = hint.__metadata__
                yield name, parameter, info.file_okay, info.dir_okay


def _parts(hint):
    for part in typing.get_args(hint):
        yield part
        yield from _parts(part)


PATHS = list(_paths())


def test_every_path_is_a_file_or_a_folder():
    assert len(PATHS) > 30
    for name, parameter, file, folder in PATHS:
        if parameter.name in EITHER:
            assert (file, folder, parameter.metavar) == (True, True, "FILE"), (name, parameter.name)
        else:
            assert parameter.metavar == ("FILE" if file else "FOLDER"), (name, parameter.name)
            assert file is not folder, (name, parameter.name)


@pytest.mark.parametrize(
    ("name", "parameter", "file"),
    [(name, parameter, file) for name, parameter, file, _ in PATHS if parameter.name not in EITHER],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "name", ""),
)
def test_a_folder_for_a_file_and_a_file_for_a_folder_are_one_line(call, tmp_path, monkeypatch, name, parameter, file):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").write_text("x", encoding="utf-8")
    # The current folder is the one that broke: it has no name of its own.
    for wrong in (".", tmp_path) if file else ("a-file",):
        words = [wrong] if parameter.param_type_name == "argument" else [parameter.opts[-1], wrong]
        # What else the command needs: the check of a path comes first, whatever it is.
        needed = [p for p in COMMANDS[name].params if p.required and p is not parameter]
        other = ["there", *(f"--{p.name.replace('_', '-')}=1" for p in needed if p.param_type_name == "option")]
        arguments = other if parameter.param_type_name == "option" else other[1:]
        if not any(p.param_type_name == "argument" for p in needed) and parameter.param_type_name == "option":
            arguments = other[1:]
        code, out, err = call(*name.split(), *arguments, *words)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert call.refused(naming=(f"'{wrong}'", f"heldin {name} --help"))
        assert parameter.metavar in err or parameter.opts[-1] in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-file"]


def test_every_command_that_writes_a_report_writes_a_web_page():
    """Commands that call ``finish`` or write a PDF have the one option."""
    code = {}
    for name in COMMANDS:
        module = importlib.import_module(f"heldin.commands.{cli.COMMANDS[name.split()[0]].split(':')[0]}")
        function = inspect.unwrap(COMMANDS[name].callback)
        called = set(re.findall(r"\b(_?\w+)\(", inspect.getsource(function)))
        # With what its private helpers in the same module do.
        helpers = [its for each in called if inspect.isfunction(its := getattr(module, each, None)) and each[0] == "_"]
        code[name] = inspect.getsource(function) + "".join(map(inspect.getsource, helpers))
    writing = {name for name, text in code.items() if re.search(r"\bfinish\(|\bwrite_pdf\(|\bwrite_reports\(", text)}
    assert writing == {"audit", "audit-endpoint", "run", "sweep", "demo", "report", "audit-planted", "retrain"}
    have = {name for name, command in COMMANDS.items() if any(its.name == "html" for its in command.params)}
    assert have == writing | {"runs"}


def test_a_rare_option_works_and_is_in_its_page_only_when_asked(call, page):
    assert "--gpu-memory" not in page("run")
    assert "--gpu-memory" in page("run", "--help-all")
    code, _, _ = call("run", "nothing.yaml", "--gpu-memory", "3")
    assert code == 2
    assert call.refused(by="run", naming=("--gpu-memory", "--check"))
    code, out, _ = call("run", "--help-all")
    assert code == 0
    assert "--gpu-memory" in out
