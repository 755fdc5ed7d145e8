"""Corpora that heldin writes itself."""
