"""Every number that a person may give has a limit, in a config, in a plan and on the command line."""

import importlib
import math
import pkgutil
import typing
import warnings

import pytest
import typer
from pydantic import TypeAdapter

import heldin
from heldin.base.arguments import number_in, whole_number_in
from heldin.base.errors import InputError
from heldin.base.section import DATACLASS_SECTION, FEW, MANY, MOST, Section
from heldin.commands.cli import app
from heldin.defenses.accounting.account import account_els
from heldin.defenses.accounting.events import PoissonGaussian, check_count
from heldin.defenses.choices import Choice
from tests.refusals import names

HUGE = 10**24
# Of a package that is being rebuilt; its sections get the types of ``base.section`` there.
AWAITED = {("PlantConfig", "sequence_length"), ("PlantConfig", "seed"), ("PlantedSplit", "audit_pool")}


def below(kind):
    for its in kind.__subclasses__():
        yield its
        yield from below(its)


def all_sections():
    """Every class that serves as a section of a config or of a plan, in all packages."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modules = [
            importlib.import_module(its.name)
            for its in pkgutil.walk_packages(heldin.__path__, "heldin.")
            if not its.name.endswith("__main__")
        ]
    classes = {its for module in modules for its in vars(module).values() if isinstance(its, type)}
    plain = {its for its in classes if vars(its).get("__pydantic_config__") is DATACLASS_SECTION}
    known = {its for its in {*below(Section), *below(Choice), *plain} if its.__module__.startswith("heldin.")}
    return sorted(known, key=lambda its: (its.__module__, its.__name__))


def unlimited(schema, key=None):
    """The keys of numbers in a JSON schema that have no upper limit."""
    if isinstance(schema, list):
        for part in schema:
            yield from unlimited(part, key)
    elif isinstance(schema, dict):
        if schema.get("type") in ("integer", "number") and not schema.keys() & {"maximum", "exclusiveMaximum"}:
            yield key
        for name, part in schema.items():
            if name == "properties":
                for its, value in part.items():
                    yield from unlimited(value, its)
            elif name not in ("default", "$defs"):
                yield from unlimited(part, key)


def test_every_number_of_every_section_has_a_limit():
    sections = all_sections()
    assert {"Recipe", "TinyModel", "SweepConfig", "UlsDefense", "EndpointConfig"} <= {its.__name__ for its in sections}
    without = {(its.__name__, key) for its in sections for key in unlimited(TypeAdapter(its).json_schema())}
    assert without == AWAITED


def test_a_number_without_a_limit_is_found():
    class Loose(Section):
        many: tuple[dict[str, int | None], ...] = ()
        few: int = 0

    assert sorted(unlimited(TypeAdapter(Loose).json_schema())) == ["few", "many"]


def _functions(command):
    """The functions behind a command and those below it."""
    below = getattr(command, "commands", None)
    if below is None:
        return [command.callback.__wrapped__]  # in what typer makes of it
    return [function for name in below for function in _functions(below[name])]


OPTIONS = [
    (function, name)
    for function in _functions(typer.main.get_command(app))
    for name, hint in typing.get_type_hints(function).items()
    if {int, float} & {hint, *typing.get_args(hint)}
]


@pytest.mark.parametrize(("command", "name"), OPTIONS, ids=lambda its: getattr(its, "__name__", its))
def test_every_number_on_the_command_line_has_a_limit(command, name):
    option = f"--{name.replace('_', '-')}"
    for value, fault, remedy in ((HUGE, "above ", "lower"), (-HUGE, "below -", "raise"), (math.inf, "above ", "lower")):
        with pytest.raises(InputError, match=rf"{option} is {fault}2?1?e?[\d,+]+.*: {remedy} "):
            command(**{name: value})
        with pytest.raises(InputError, match=rf"{option} is {fault}"):
            command(**{name: [1, value]})


def test_the_options_are_those_of_all_commands():
    assert len(OPTIONS) > 60
    assert {"bound", "audit", "power", "account", "white_box"} <= {command.__name__ for command, _ in OPTIONS}


@pytest.mark.parametrize("size", ["9" * 24, str(MANY + 1)])
@pytest.mark.parametrize("method", ["els", "group", "example"])
def test_a_group_of_more_records_than_an_array_holds_is_refused_at_once(call, method, size):
    given = ("--steps", "1000", "--delta", "1e-6", "--sampling-rate", "0.001", "--noise-multiplier", "1")
    code, _, err = call("account", method, "--group-size", size, *given)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "group" in err


def test_python_has_the_same_limits():
    for wrong in ({"group_size": HUGE}, {"steps": HUGE, "group_size": 2}, {"group_size": MANY + 1}):
        with pytest.raises(InputError, match="lower "):
            account_els(**{"steps": 10, "delta": 1e-6, "sampling_rate": 0.1, "noise_multiplier": 1.0, **wrong})
    with pytest.raises(InputError, match="group size is above 1,000,000"):
        PoissonGaussian(1.0, 0.1, HUGE)
    check_count("steps", MOST)


def test_a_run_with_a_number_beyond_its_limit_names_the_key(call, tmp_path, small_config):
    file = str(small_config)
    for key, value in (
        ("finetune.batch_size", HUGE),
        ("finetune.epochs", 1e300),
        ("model.pretrain.shape.vocabulary", 10**9),
        ("audit.resamples", 10**9),
        ("corpus.source.parameters.users", 10**15),
    ):
        code, _, err = call("run", file, "--set", f"{key}={value}", "--out", tmp_path / "run")
        assert code == 2
        # A number of more than 64 bits ends before there is a key.
        assert key in err
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a": ' * 100_000])
def test_json_that_is_nested_without_end_is_one_line(call, tmp_path, deep):
    for name in ("plan.json", "record.json", "sweep.json", "comparison.json", "lines.jsonl"):
        (tmp_path / name).write_text(deep, encoding="utf-8")
    scores = tmp_path / "scores.csv"
    scores.write_text("user,score,member\na,1,1\nb,2,0\n", encoding="utf-8")
    plan = tmp_path / "plan.json"
    for words in (
        ("account", plan),
        ("bound", scores, "--plan", plan),
        ("report", tmp_path),
        ("verify", tmp_path),
        ("compare", tmp_path, tmp_path),
        ("corpus", "build", tmp_path / "lines.jsonl"),
    ):
        code, _, err = call(*words)
        assert (code, len(err.splitlines())) == (2, 1), (words, err)


@pytest.mark.parametrize("text", ["1_5", "_1", "1_000.5", "1__0"])
def test_an_underscore_is_no_part_of_a_number_in_a_text(call, tmp_path, text):
    for reader in (number_in, whole_number_in):
        with pytest.raises(ValueError, match="is not a"):
            reader(text)
    rows = "".join(f"u{i},{i}.5,{i % 2}\n" for i in range(20))
    (tmp_path / "scores.csv").write_text(f"user,score,member\n{rows}u20,{text},1\n", encoding="utf-8")
    code, _, err = call("bound", tmp_path / "scores.csv")
    assert (code, names(err, "row 22")) == (2, True)
    code, _, err = call("power", "--users", "100", "--auroc", "0.7", "--claim", f"epsilon={text},delta=1e-6")
    assert (code, "is not a number" in err) == (2, True)
    code, _, err = call(
        "account", "uedp", "--users", "9", "--cohort", "3", "--steps", "3", "--holders", f"1,{text}"
    )  # fmt: skip
    assert (code, "--holders" in err) == (2, True)


def test_the_limits_are_in_order():
    assert FEW < MANY < MOST
