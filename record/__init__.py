"""The documents of an audit: the typed record, names masked, and comparisons of records."""
