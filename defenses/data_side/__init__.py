"""Heuristic defenses on the data side, one module per kind. No such defense gives a DP guarantee."""
