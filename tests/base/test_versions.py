import importlib.metadata

import heldin
from heldin.base import versions


def test_an_installed_package_has_its_version():
    assert versions.installed_versions(["torch", "no-such-package"]) == {"torch": importlib.metadata.version("torch")}
    assert heldin.__version__ == versions.version()


def test_a_source_tree_that_is_not_installed_says_so(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert versions.version() == versions.UNINSTALLED
    assert versions.installed_versions(["torch"]) == {}
