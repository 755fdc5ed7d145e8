"""The front door for people who write Python: what ``import heldin`` offers."""
