"""Canary users: made-up users, real users with an inserted substring, and users made of real rows."""
