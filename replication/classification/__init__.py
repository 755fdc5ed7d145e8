"""Text classification with the mechanisms of a run, compared by test error (Lai et al. 2021, Figure 3)."""
