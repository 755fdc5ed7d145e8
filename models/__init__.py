"""What predicts: load safely, tokenize, token log-probabilities, generation."""
