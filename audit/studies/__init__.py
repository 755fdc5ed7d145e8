"""Published results, computed anew: mean estimation, effective noise, Propositions 1 and 2."""
