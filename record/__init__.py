"""What is kept of an audit: the typed record, its migrations, masking and comparison."""
