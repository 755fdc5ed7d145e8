"""Attacks, which score users. An attack sees users and their texts, but not who is a member."""
