import importlib.metadata

import heldin
from heldin.base import machine


def test_an_installed_package_has_its_version():
    assert machine.installed_versions(["torch", "no-such-package"]) == {"torch": importlib.metadata.version("torch")}
    assert heldin.__version__ == machine.version()


def test_a_source_tree_that_is_not_installed_says_so(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setattr(machine, "version_of", machine.version_of.__wrapped__)
    assert machine.version() == machine.UNINSTALLED
    assert machine.installed_versions(["torch"]) == {}
