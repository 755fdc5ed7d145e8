"""From evidence to verdict: an audit's results from scores and membership. No model runs, and no run file is read."""
