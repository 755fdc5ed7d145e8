"""Public corpora, prepared as in the papers."""
