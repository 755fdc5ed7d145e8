"""Score users: an attack sees users and their texts, never who is a member."""
