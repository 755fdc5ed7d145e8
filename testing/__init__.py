"""Checks of kinds that packages add to heldin: attacks, sources, defenses, mechanisms, canary users and measures.

Call each check in a test of your package. It raises AssertionError with one line for every fault. ``heldin plugins
--check`` runs the checks for installed packages. Python imports each check at its first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heldin.testing.attacks import check_attack as check_attack
    from heldin.testing.canaries import check_canaries as check_canaries
    from heldin.testing.defenses import check_defense as check_defense
    from heldin.testing.measures import check_measure as check_measure
    from heldin.testing.mechanisms import check_mechanism as check_mechanism
    from heldin.testing.sources import check_source as check_source

_HOMES = {
    "check_attack": "attacks",
    "check_canaries": "canaries",
    "check_defense": "defenses",
    "check_measure": "measures",
    "check_mechanism": "mechanisms",
    "check_source": "sources",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'heldin.testing' has no attribute '{name}'")
    return getattr(importlib.import_module(f"heldin.testing.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
