"""Several defenses in one batch: cells that share coins within a block, and their joint results."""
