"""Defenses that choose what is trained on."""
