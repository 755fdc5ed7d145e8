"""Text classification under the mechanisms of a run: test error (Lai et al. 2021, Figure 3)."""
