"""The guarantee of a mechanism: epsilon, noise, and a ceiling on every attack."""
