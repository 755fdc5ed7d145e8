"""The stages that jobs have in common, from a corpus to facts for a record."""
