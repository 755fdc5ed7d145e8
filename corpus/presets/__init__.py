"""Public corpora, prepared as the papers did."""
