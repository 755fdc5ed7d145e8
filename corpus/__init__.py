"""Corpora of people's texts: load, group by user, split users by coin, set attacker text aside."""
