"""The documents of an audit: the typed record, configs without names, and comparisons of records."""
