"""Public corpora with the papers' steps."""
