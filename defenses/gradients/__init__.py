"""Exact clipped gradients of units, at about the cost of plain training."""
