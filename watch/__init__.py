"""What is logged of a training that somebody else runs, and what the log shows next to a planted training set."""
