"""The plan of a run, and the models trained by it."""
