"""What the product does: runs, audits of checkpoints, retrainings, and their checks."""
