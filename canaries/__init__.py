"""Planted users: craft and inject canaries."""
