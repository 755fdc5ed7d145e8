"""Canary users: made from nothing, or real users with an injected substring."""
