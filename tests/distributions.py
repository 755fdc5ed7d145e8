"""Check built distributions: `python -m tests.distributions dist`.

The packages are symbolic links in src/heldin, which a build tool may or may not follow. Wheel and source archive must
hold every module and data file of the packages, with the same content.
"""

import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "heldin"


def wanted() -> dict[str, bytes]:
    """Name and content of every file that an installed heldin needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    data = project["tool"]["setuptools"]["package-data"]
    patterns = ["*.py", *(f"{pattern}" for kept in data.values() for pattern in kept)]
    found = {}
    for top in sorted(SOURCE.iterdir()):
        # A link to a folder is followed by resolving it: rglob follows none.
        files = top.resolve().rglob("*") if top.is_dir() else [top]
        for path in files:
            if path.is_file() and any(fnmatch(path.name, pattern) for pattern in patterns):
                name = top.name if path == top else f"{top.name}/{path.relative_to(top.resolve()).as_posix()}"
                found[f"heldin/{name}"] = path.read_bytes()
    return found


def missing(files: Mapping[str, bytes], held: Mapping[str, bytes]) -> list[str]:
    """Return the files that a distribution lacks, or holds with another content."""
    return [name for name, content in files.items() if held.get(name) != content]


def contents(archive: Path) -> dict[str, bytes]:
    """Name and content of each file of a wheel or a source archive, as below its folder of packages."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(archive) as source:
        files = [(member.name, source.extractfile(member)) for member in source.getmembers()]
        return {name.partition("/src/")[2] or name: file.read() for name, file in files if file is not None}


def main(folder: Path) -> int:
    """Print what is missing; 0 if nothing is."""
    archives, files = sorted(folder.glob("heldin-*")), wanted()
    wrong = [f"{archive.name}: {name}" for archive in archives for name in missing(files, contents(archive))]
    print("\n".join(wrong) or f"{len(files)} files of the packages are in {', '.join(a.name for a in archives)}")
    return 1 if wrong or [a.suffix for a in archives] != [".whl", ".gz"] else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
