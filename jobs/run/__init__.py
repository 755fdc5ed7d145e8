"""A run from corpus to record."""
