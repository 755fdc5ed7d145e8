"""What `pip install heldin` brings: one package, from a wheel and from a source archive, beside anybody's own names."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "api attacks audit base bounds canaries commands corpus defenses finetune jobs models planting record reports"
    " stages sweeps testing white_box words"
)


def _call(*arguments, cwd, **environment):
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, arguments)], capture_output=True, text=True, cwd=cwd, env={**clean, **environment}, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def archives(make_once):
    """A wheel made from the tree, and one made from the source archive of the tree."""

    def build(folder):
        tree = folder / "tree"
        _call("git", "clone", "--quiet", "--no-hardlinks", ROOT, tree, cwd=folder)
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
        _call(*pip, folder / "clone", tree, cwd=folder)
        source = "from setuptools import build_meta; print(build_meta.build_sdist('../sdist'))"
        _call(sys.executable, "-c", source, cwd=tree)
        (archive,) = (folder / "sdist").glob("heldin-*.tar.gz")
        _call(*pip, folder / "archive", archive, cwd=folder)

    folder = make_once("archives", build)
    return {way: next((folder / way).glob("*.whl")) for way in ("clone", "archive")}


@pytest.fixture(params=["clone", "archive"])
def installed(request, archives, tmp_path):
    """(python, heldin, site-packages) of an environment outside the repository that holds the wheel alone.

    What heldin depends on is read from this environment, without its editable install.
    """
    venv.create(tmp_path / "venv", with_pip=False)
    scripts = tmp_path / "venv" / "bin"
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    install = [sys.executable, "-m", "pip", "--python", scripts / "python", "install", "--quiet", "--no-deps"]
    _call(*install, archives[request.param], cwd=tmp_path)
    landed = {path.name for path in site.iterdir()}
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return scripts / "python", scripts / "heldin", site, landed


@pytest.mark.slow
def test_one_package_lands_in_site_packages_and_works_beside_foreign_names(installed, finished, tmp_path):
    python, heldin, site, landed = installed
    assert {name.split("-")[0] for name in landed} == {"heldin"}
    packages = sorted(path.name for path in (site / "heldin").iterdir() if path.is_dir() and path.name != "__pycache__")
    assert packages == PACKAGES.split()
    assert not any(path.is_symlink() for path in (site / "heldin").rglob("*"))
    assert (site / "heldin" / "py.typed").is_file()
    here = tmp_path / "notebook"
    here.mkdir()
    for name in ("models", "audit", "reports", "corpus"):
        (here / f"{name}.py").write_text("raise SystemExit('not the module of heldin')\n", encoding="utf-8")
    modules = {str(path.relative_to(ROOT)) for package in PACKAGES.split() for path in (ROOT / package).rglob("*.py")}
    assert {str(path.relative_to(site / "heldin")) for path in (site / "heldin").rglob("*.py")} == {
        *modules, "__init__.py", "__main__.py"
    }  # fmt: skip
    bound = "heldin.bound([0.0, 1.0] * 30, [False, True] * 30, assignment='coin', claims=[(4, 1e-6)])"
    assert "inconclusive" in _call(python, "-c", f"import heldin; print({bound}.verdict.outcome)", cwd=here)
    found = _call(python, "-c", "import heldin.bounds.one_run as m; print(m.__file__)", cwd=here)
    assert found.strip() == str(site / "heldin" / "bounds" / "one_run.py")
    assert "heldin audit" in _call(heldin, "audit", "--help", cwd=here)
    assert "bound" in _call(python, "-m", "heldin", "--help", cwd=here)
    account = ["account", "uls", "--users", 1024, "--cohort", 16, "--steps", 100, "--delta", 1e-6]
    assert "epsilon" in _call(heldin, *account, "--noise-multiplier", 1.0, cwd=here, HELDIN_CACHE_DIR=str(tmp_path))
    copy = tmp_path / "run"
    copy.mkdir()
    (copy / "record.json").write_bytes((finished / "record.json").read_bytes())
    _call(heldin, "report", copy, cwd=here)
    assert (copy / "report.pdf").read_bytes()[:4] == b"%PDF"
