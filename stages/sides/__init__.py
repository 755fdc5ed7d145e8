"""The members and non-members of a run and their texts: everything up to the coins."""
