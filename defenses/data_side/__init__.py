"""Heuristic defenses on the data side: a module for each kind. None is a DP guarantee."""
