"""The size of heldin: `python benchmarks/size.py`.

Lines and modules of the package, import depth, and what an audit of two files loads.

Product lines are those of every Python file outside of tests, docs, benchmarks, examples, src and replication. Import
depth is the number of modules on the longest chain of imports at the top level of modules.
"""

import ast
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {"tests", "docs", "benchmarks", "examples", "src", "replication"}
NAMES = ("its", "one", "found", "said", "told", "of", "what")


def product_files() -> list[Path]:
    """Every Python file of the package that git knows."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [
        ROOT / name for name in listed.splitlines() if Path(name).parts[0] not in OUTSIDE and (ROOT / name).is_file()
    ]


def lines_of(paths: list[Path]) -> int:
    """Lines of these files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def write_audited_files(folder: Path) -> None:
    """Fill the folder with the example of heldin and two trained models: what ``audit_modules`` audits."""
    example = (
        "from heldin.jobs.example import write_example; from heldin.base.progress import LineReporter; from pathlib"
        " import Path; import sys; write_example(Path(sys.argv[1]), users=40, models=True,"
        " reporter=LineReporter(lambda line: None))"
    )
    subprocess.run([sys.executable, "-c", example, str(folder)], check=True, capture_output=True)


def audit_modules(files: Path) -> list[str]:
    """Modules of heldin that a process has loaded after `heldin audit` of two of these files."""
    options = {
        "--model": files / "model",
        "--reference": files / "base",
        "--user": "author",
        "--text": "body",
        "--held-in": files / "held_in.jsonl",
        "--held-out": files / "held_out.jsonl",
        "--out": files / "audit",
    }
    words = ["audit", *(str(word) for option in options.items() for word in option)]
    audit = "import sys; from heldin.commands import cli\ntry:\n    cli.main()\nexcept SystemExit: pass\n"
    audit += "print('\\n'.join(name for name in sys.modules if name.startswith('heldin')), file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", audit, *words], check=True, capture_output=True, text=True)
    return [name for name in ran.stderr.splitlines() if name.startswith("heldin")]


def file_of(module: str) -> Path | None:
    """The file of a module of heldin; None for the package itself."""
    parts = module.split(".")[1:]
    places = [ROOT.joinpath(*parts).with_suffix(".py"), ROOT.joinpath(*parts, "__init__.py")] if parts else []
    return next((path for path in places if path.is_file()), None)


def module_of(path: Path) -> str:
    """Return the name of the module in a file of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("heldin", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def imported_at_top_level(path: Path, modules: Collection[str]) -> set[str]:
    """Return the modules that a file imports whenever it is imported: not within functions, and not for types alone."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in modules else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(modules)


def import_depth() -> int:
    """Return the number of modules on the longest chain of imports."""
    files = {module_of(path): path for path in product_files()}
    imported = {module: imported_at_top_level(path, files.keys()) - {module} for module, path in files.items()}

    @cache
    def depth_of(module: str) -> int:
        return 1 + max(map(depth_of, imported[module]), default=0)

    return max(map(depth_of, imported))


def uses_of_names(paths: list[Path]) -> Counter[str]:
    """How often a variable or parameter has one of the names that say nothing."""
    uses: Counter[str] = Counter()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else None
            if name in NAMES:
                uses[name] += 1
    return uses


def main() -> None:
    """Print the figures."""
    files = product_files()
    print(f"product lines                        {lines_of(files):>8,}")
    print(f"modules                              {len(files):>8,}")
    print(f"import depth                         {import_depth():>8,}")
    uses = uses_of_names(files)
    print("uses of names that say nothing       " + ", ".join(f"{name} {uses[name]}" for name in NAMES))
    with tempfile.TemporaryDirectory() as scratch:
        write_audited_files(Path(scratch) / "files")
        modules = [path for name in audit_modules(Path(scratch) / "files") if (path := file_of(name)) is not None]
    print(f"lines that `heldin audit` loads      {lines_of(modules):>8,} in {len(modules)} modules")
    replication = sorted((ROOT / "replication").rglob("*.py"))
    print(f"lines of replication/, not counted   {lines_of(replication):>8,}")


if __name__ == "__main__":
    main()
