"""Language models: safe loading, tokenizers, token log-probabilities, generation."""
