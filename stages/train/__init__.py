"""The plan, and what is trained by it."""
