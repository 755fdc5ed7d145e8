"""Packages as an installer leaves them: modules and what they register, in a folder on the path."""

import shutil
import sys
import tomllib
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples" / "plugins"


def install(folder, monkeypatch, *names):
    """Put example packages into a folder, and the folder on the path; what they imported before is forgotten."""
    for name in names:
        project = tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text(encoding="utf-8"))
        for module in project["tool"]["setuptools"]["py-modules"]:
            shutil.copy(EXAMPLES / name / f"{module}.py", folder)
            monkeypatch.delitem(sys.modules, module, raising=False)
        register(folder, project["project"], project["tool"]["setuptools"]["py-modules"])
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])


def register(folder, project, modules):
    """Write what an installer writes about a project."""
    about = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (about / "METADATA").write_text(head, encoding="utf-8")
    (about / "RECORD").write_text("".join(f"{module}.py,,\n" for module in modules), encoding="utf-8")
    lines = []
    for group, entries in project.get("entry-points", {}).items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
