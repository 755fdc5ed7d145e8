"""What is kept of an audit: the typed document, its migrations, masking, comparing."""
