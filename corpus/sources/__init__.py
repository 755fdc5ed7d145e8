"""Formats of records that heldin reads."""
