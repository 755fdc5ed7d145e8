"""Corpora that heldin generates."""
