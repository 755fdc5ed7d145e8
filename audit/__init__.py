"""From evidence to verdict: the results of scores and membership together. No model runs here, no run file is read."""
