"""Defenses that choose the records for training."""
