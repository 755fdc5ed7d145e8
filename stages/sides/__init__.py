"""The held-in and held-out users and texts of a run: everything up to the coins."""
