"""The size of heldin: `python benchmarks/size.py`.

Counts lines and modules of the package, the depth of imports, and the modules that an audit of two files loads.

Product lines are in every Python file outside of tests, docs, benchmarks, examples, src and replication. Import depth
is the number of modules on the longest chain of imports at the top level of modules. If imports in functions also
count, a circle counts as one step. Imports in functions are counted outside of commands and api, which load what a
command needs only when it is called. Imports of heldin's own modules and of libraries are counted separately.
"""

import ast
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {"tests", "docs", "benchmarks", "examples", "src", "replication"}
# Tests of the words themselves, and of contracts whose subject is a text.
ABOUT_WORDS = {"words", "golden", "contracts"}
_PHRASE = re.compile(r"(?<![\w./-])[a-z]{2,}(?: [a-z]{2,}){2,}(?![\w/-])")
NAMES = ("its", "one", "found", "said", "told", "of", "what")


def product_files() -> list[Path]:
    """Return every Python file of the package that git tracks."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [
        ROOT / name for name in listed.splitlines() if Path(name).parts[0] not in OUTSIDE and (ROOT / name).is_file()
    ]


def lines_of(paths: list[Path]) -> int:
    """Return the number of lines in these files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def write_audited_files(folder: Path) -> None:
    """Write heldin's example and two trained models to the folder, for the audit in ``audit_words``."""
    example = (
        "from heldin.jobs.example import write_example; from heldin.base.progress import LineReporter; from pathlib"
        " import Path; import sys; write_example(Path(sys.argv[1]), users=40, models=True,"
        " reporter=LineReporter(lambda line: None))"
    )
    subprocess.run([sys.executable, "-c", example, str(folder)], check=True, capture_output=True)


def audit_words(files: Path) -> list[str]:
    """Return the command-line words of `heldin audit` for these files."""
    options = {
        "--model": files / "model",
        "--reference": files / "base",
        "--user": "author",
        "--text": "body",
        "--held-in": files / "held_in.jsonl",
        "--held-out": files / "held_out.jsonl",
        "--out": files / "audit",
    }
    return ["audit", *(str(word) for option in options.items() for word in option)]


# Libraries take seconds to load: commands share them, each in a fork that has no module of heldin yet.
_LOADING = """
import json, os, sys, traceback
import matplotlib.backends.backend_svg, matplotlib.figure, pydantic, pyarrow.dataset, scipy.stats, sklearn.linear_model
import torch, transformers.models.gpt_neo.modeling_gpt_neo, typer, typst
for number, words in enumerate(json.loads(sys.argv[1])):
    child = os.fork()
    if child:
        if os.waitpid(child, 0)[1]:
            sys.exit(f"failed: {words}")
        continue
    code = 1
    try:
        sys.argv = ["heldin", *words]
        from heldin.commands import cli
        try:
            cli.main()
        except SystemExit:
            pass
        names = [name for name in sys.modules if name.startswith("heldin")]
        print(json.dumps({"number": number, "modules": names}), file=sys.stderr, flush=True)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
"""


def loaded_modules(commands: list[list[str]]) -> list[list[str]]:
    """Return, for each command, the modules of heldin that a process has loaded after it."""
    words = [sys.executable, "-c", _LOADING, json.dumps(commands)]
    ran = subprocess.run(words, check=True, capture_output=True, text=True)
    lines = [json.loads(line) for line in ran.stderr.splitlines() if line.startswith('{"number"')]
    return [line["modules"] for line in lines]


def file_of(module: str) -> Path | None:
    """Return the file of a module of heldin; None for the package itself."""
    parts = module.split(".")[1:]
    places = [ROOT.joinpath(*parts).with_suffix(".py"), ROOT.joinpath(*parts, "__init__.py")] if parts else []
    return next((path for path in places if path.is_file()), None)


def module_of(path: Path) -> str:
    """Return the name of the module in this file of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("heldin", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def imported_at_top_level(path: Path, modules: Collection[str]) -> set[str]:
    """Return the modules that a file always imports: not in functions, and not for types only."""
    return _imports(tree_of(path).body, modules) & set(modules)


def _imports(nodes: Iterable[ast.AST], modules: Collection[str]) -> set[str]:
    """Return the imported names: modules of the collection, and for others the first part of the name."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in modules else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name if name in modules else name.partition(".")[0] for name in found}


def _in_functions(path: Path) -> list[ast.AST]:
    """Return each import statement inside a function, once."""
    functions = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = [
        node for function in functions for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    return list({id(node): node for node in found}.values())


def imports_in_functions() -> tuple[list[str], list[str]]:
    """Return the import statements inside functions, as file:line, outside of commands and api.

    The first list has imports of heldin's own modules, the second list imports of libraries.
    """
    files = {module_of(path): path for path in product_files()}
    own, libraries = [], []
    for module, path in files.items():
        if module.split(".")[1] not in {"commands", "api"}:
            for node in _in_functions(path):
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                (own if _imports([node], files.keys()) & files.keys() else libraries).append(place)
    return own, libraries


def _import_graph(*, in_functions: bool) -> dict[str, set[str]]:
    files = {module_of(path): path for path in product_files()}
    graph = {module: imported_at_top_level(path, files.keys()) - {module} for module, path in files.items()}
    if in_functions:
        for module, path in files.items():
            graph[module] |= _imports(_in_functions(path), files.keys()) & files.keys() - {module}
    return graph


def import_circles() -> list[list[str]]:
    """Return the groups of modules that import each other, including imports in functions."""
    return sorted(sorted(group) for group in _groups(_import_graph(in_functions=True)) if len(group) > 1)


def _groups(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components, each after those that it imports (Tarjan 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for imported in graph[module]:
            if imported not in order:
                visit(imported)
            if imported in stack:
                lowest[module] = min(lowest[module], lowest[imported])
        if lowest[module] == order[module]:
            first = stack.index(module)
            groups.append(stack[first:])
            del stack[first:]

    for module in graph:
        if module not in order:
            visit(module)
    return groups


def import_depth(*, in_functions: bool = False) -> int:
    """Return the number of modules on the longest chain of imports.

    Args:
        in_functions: whether imports in functions also count.
    """
    graph = _import_graph(in_functions=in_functions)
    depth: dict[str, int] = {}
    for group in _groups(graph):
        outside = {imported for module in group for imported in graph[module]} - set(group)
        depth.update(dict.fromkeys(group, 1 + max((depth[module] for module in outside), default=0)))
    return max(depth.values())


def uses_of_names(paths: list[Path]) -> Counter[str]:
    """Return how often each uninformative name is used for a variable or parameter."""
    uses: Counter[str] = Counter()
    for path in paths:
        for node in nodes_of(path):
            name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else None
            if name in NAMES:
                uses[name] += 1
    return uses


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return every node of the parsed file. The result is cached, because several counts need it."""
    return tuple(ast.walk(tree_of(path)))


def names_of_several_classes(paths: list[Path]) -> list[str]:
    """Return the names that more than one class uses."""
    nodes = (node for path in paths for node in nodes_of(path))
    named = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    return sorted(name for name, count in named.items() if count > 1)


def _compared_parts(node: ast.AST) -> Iterator[str | ast.Name]:
    """Yield the texts and names in an expression, except arguments of functions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name):
        yield node
    elif isinstance(node, ast.Call):
        # What is searched for in a text, as in ``err.count("phrase")``; other arguments are a test's input.
        if isinstance(node.func, ast.Attribute):
            searched = node.args if node.func.attr in {"count", "startswith", "endswith"} else []
            for part in (node.func.value, *searched):
                yield from _compared_parts(part)
    else:
        for part in ast.iter_child_nodes(node):
            yield from _compared_parts(part)


def _compared_texts(test: ast.FunctionDef) -> Iterator[str]:
    """Yield the texts that a test function compares with something."""
    parts: list[str | ast.Name] = []
    for node in ast.walk(test):
        if isinstance(node, ast.Assert):
            parts += _compared_parts(node.test)
        elif isinstance(node, ast.keyword) and node.arg == "match":
            parts += _compared_parts(node.value)
    compared = {part.id for part in parts if isinstance(part, ast.Name)}
    for names, rows in _literal_tables(test):
        columns = names.split(",") if isinstance(names, str) else names
        for row in rows:
            values = row.args if isinstance(row, ast.Call) else getattr(row, "elts", []) if len(columns) > 1 else [row]
            for name, value in zip(columns, values, strict=False):
                if name.strip() in compared:
                    parts += _compared_parts(value)
    yield from (part for part in parts if isinstance(part, str))


def _literal_tables(test: ast.FunctionDef) -> Iterator[tuple[str | list[str], list[ast.expr]]]:
    """Yield names and rows of the tables that parametrize a test, or over which the test iterates."""
    for call in test.decorator_list:
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("parametrize"):
            yield ast.literal_eval(call.args[0]), getattr(call.args[1], "elts", [])
    for loop in ast.walk(test):
        if isinstance(loop, ast.For):
            yield (
                [ast.unparse(name) for name in getattr(loop.target, "elts", [loop.target])],
                getattr(loop.iter, "elts", []),
            )


def tests_tied_to_wording() -> list[str]:
    """Return the test functions, as file::name, that a change of a sentence in heldin may break.

    These are test functions outside of ``ABOUT_WORDS`` that compare with a phrase. A phrase is three or more lowercase
    words in a row. It is in a text that is asserted, passed to ``match=``, or a parameter whose name is asserted or
    matched. A text that is an argument of a function is an input of the test, and not a comparison.
    """
    tied = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = path.relative_to(ROOT)
        if name.parts[1] in ABOUT_WORDS:
            continue
        for node in nodes_of(path):
            if not (isinstance(node, ast.FunctionDef) and node.name.startswith("test_")):
                continue
            if any(_PHRASE.search(re.sub(r"\\.", "", text)) for text in _compared_texts(node)):
                tied.append(f"{name}::{node.name}")
    return tied


def files_that_use_private_names() -> dict[str, list[str]]:
    """Return, for each test file that uses private names of heldin, these names.

    A use is an import, an attribute, or a text that names the target of ``setattr``. A name counts if heldin defines it
    and the file does not; private names of other libraries do not count. A test of a refusal states which check raised
    the error (``by="..."``); such a text is not a use.
    """
    of_heldin = _private_names(product_files()) - {"_repr_html_"}  # a protocol of notebooks
    used = {
        str(path.relative_to(ROOT)): sorted(_used_names(path) & of_heldin - _private_names([path]))
        for path in sorted((ROOT / "tests").rglob("*.py"))
    }
    return {file: names for file, names in used.items() if names}


def _private_names(paths: list[Path]) -> set[str]:
    names = set()
    for path in paths:
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                names |= {node.attr} if isinstance(node.ctx, ast.Store) else set()
    return {name for name in names if re.match(r"_[^_]", name)}


def _used_names(path: Path) -> set[str]:
    names = set()
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names} if (node.module or "").startswith("heldin") else set()
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            texts = [text.value for text in node.args if isinstance(text, ast.Constant) and isinstance(text.value, str)]
            names |= {text.rpartition(".")[2] for text in texts}
    return names


def main() -> None:
    """Print the figures."""
    files = product_files()
    print(f"product lines                        {lines_of(files):>8,}")
    print(f"modules                              {len(files):>8,}")
    print(f"import depth                         {import_depth():>8,}")
    print(f"  with imports in functions          {import_depth(in_functions=True):>8,}")
    own, libraries = imports_in_functions()
    print(f"imports in functions: own, libraries {len(own):>8,}, {len(libraries)}")
    print(f"circles of imports                   {len(import_circles()):>8,}")
    uses = uses_of_names(files)
    print("uses of names that say nothing       " + ", ".join(f"{name} {uses[name]}" for name in NAMES))
    print(f"names of several classes             {len(names_of_several_classes(files)):>8,}")
    print(f"tests tied to wording                {len(tests_tied_to_wording()):>8,}")
    print(f"test files that use private names    {len(files_that_use_private_names()):>8,}")
    with tempfile.TemporaryDirectory() as scratch:
        write_audited_files(Path(scratch) / "files")
        (names,) = loaded_modules([audit_words(Path(scratch) / "files")])
        modules = [path for name in names if (path := file_of(name)) is not None]
    print(f"lines that `heldin audit` loads      {lines_of(modules):>8,} in {len(modules)} modules")
    replication = sorted((ROOT / "replication").rglob("*.py"))
    print(f"lines of replication/, not counted   {lines_of(replication):>8,}")


if __name__ == "__main__":
    main()
