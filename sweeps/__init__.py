"""Compare several defenses in one batch. Cells of a block share coins, and the results are also judged together."""
