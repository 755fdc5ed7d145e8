"""What a mechanism promises: epsilon, noise, and a ceiling on every attack."""
