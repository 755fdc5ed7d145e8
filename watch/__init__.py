"""The log of a training that somebody else runs, and its comparison with a planted training set."""
