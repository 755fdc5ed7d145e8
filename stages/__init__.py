"""The stages of every job, from a corpus to facts for a record."""
