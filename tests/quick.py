"""Run the tests of the packages that a change touches and of the packages above them: ``make quick SINCE=main``.

``tests/PACKAGE`` belongs to a package. A file of another folder of tests runs if it imports an affected package, and
``tests/end_to_end`` always does: it runs whole commands. ``tests/replication``, which is no part of
``make test``, runs if a file of ``replication/`` differs.
"""

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]
_NO_TESTS = 5  # pytest's exit code


def main(since: str, *options: str) -> int:
    """Run pytest with the options on what ``affected_tests`` chooses; return its exit code."""
    tests = affected_tests(changed_files(since))
    print(f"since {since}: {len(tests)} files of tests", flush=True)
    if not tests:
        return 0
    code = pytest.main([*options, *(str(path) for path in tests)])
    return 0 if code == _NO_TESTS else int(code)


def changed_files(since: str) -> list[str]:
    """Paths that differ from the revision, and those that git does not know yet."""
    differing = ["git", "diff", "--name-only", since]
    unknown = ["git", "ls-files", "--others", "--exclude-standard"]
    outputs = [
        subprocess.run(c, cwd=ROOT, check=True, capture_output=True, text=True).stdout for c in (differing, unknown)
    ]
    return sorted({line for output in outputs for line in output.splitlines()})


def affected_tests(changed: Collection[str]) -> list[Path]:
    """Files of tests that are above one of the changed files, or changed themselves."""
    packages = affected_packages(changed)
    if any(path.startswith("replication/") for path in changed):
        packages.add("replication")
    return [
        path
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if (packages and _is_above(path, packages)) or path.relative_to(ROOT).as_posix() in changed
    ]


def affected_packages(changed: Collection[str]) -> set[str]:
    """The packages of the changed files, and all that import one of them directly or indirectly."""
    graph = grimp.build_graph("heldin")
    packages = {child.removeprefix("heldin."): child for child in graph.find_children("heldin")}
    for package in packages.values():
        graph.squash_module(package)
    touched = {Path(path).parts[0] for path in changed} & set(packages)
    above = {name for package in touched for name in graph.find_downstream_modules(packages[package])}
    return touched | {name.removeprefix("heldin.") for name in above}


def _is_above(path: Path, packages: Collection[str]) -> bool:
    folder = path.relative_to(ROOT / "tests").parts[0]
    if folder == "replication" or folder in packages:
        return folder in packages
    if folder == "end_to_end":
        return packages != {"replication"}
    return any(name.split(".")[1] in packages for name in _imported(path) if name.startswith("heldin."))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
