"""Score users: an attack is handed users and their texts, never who is a member."""
