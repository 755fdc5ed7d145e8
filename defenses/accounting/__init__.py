"""What a mechanism promises: epsilon, noise, and the ceiling of every attack."""
