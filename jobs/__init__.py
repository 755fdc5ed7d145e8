"""The jobs of heldin: runs, audits of checkpoints, planted audits, retrainings, and their checks."""
