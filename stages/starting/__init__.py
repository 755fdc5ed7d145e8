"""Files to start from: their contents in YAML, and the comments that are added."""
