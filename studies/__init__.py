"""Simulations of the papers' statements."""
