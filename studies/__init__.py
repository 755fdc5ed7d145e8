"""Simulations that check the papers' statements."""
