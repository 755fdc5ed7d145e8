"""Versions of heldin and of other packages."""

import importlib.metadata
from collections.abc import Iterable

UNINSTALLED = "source tree, not installed"


def version() -> str:
    """Return heldin's own version; ``UNINSTALLED`` where it runs from a source tree that is not installed."""
    return installed_versions(["heldin"]).get("heldin", UNINSTALLED)


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of these packages by name, without those that are not installed."""
    versions = {}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
