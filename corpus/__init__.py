"""Corpora of people's texts: load them, group them by user, split users by coin, and set attacker texts aside."""
