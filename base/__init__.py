"""Errors, coins, files and progress, which every other package uses."""
