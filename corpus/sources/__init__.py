"""Formats from which records are read."""
