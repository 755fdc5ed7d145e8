"""Checks of kinds that packages add to heldin: attacks, sources, defenses, mechanisms, canary users and measures.

Each is a function to call from a test of the package. It raises AssertionError with a line for everything that is
wrong. ``heldin plugins --check`` runs them for installed packages.
"""

from heldin.testing.mechanisms import check_mechanism

__all__ = ["check_mechanism"]
