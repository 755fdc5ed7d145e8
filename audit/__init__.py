"""Evidence to verdict: what scores and membership say together, as frozen results. No model, no file of a run."""
