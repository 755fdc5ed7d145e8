"""Who wrote what: load, group by user, split users by coin, set attacker text aside."""
