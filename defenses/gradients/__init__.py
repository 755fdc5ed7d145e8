"""Exact gradients of units, clipped, at the cost of plain training."""
