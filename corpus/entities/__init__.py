"""People and things that texts name: sources of mentions, the table of mentions, and exposure."""
