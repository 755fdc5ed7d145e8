"""Heuristic defenses on the data side: one module per kind. None gives a DP guarantee."""
