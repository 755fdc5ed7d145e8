"""Who and what is named in texts: sources of mentions, the table of what was found, and what it says of exposure."""
