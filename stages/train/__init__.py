"""The plan of a run, and the models that it trains."""
