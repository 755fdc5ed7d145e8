"""What is kept of an audit: the typed record, masking and comparison."""
