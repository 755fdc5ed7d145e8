"""Starting files: their contents in YAML, and the comments that heldin adds."""
