"""Who and what is held in: everything until the coins."""
