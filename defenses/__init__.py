"""What protects: the mechanism as data, its sampling, clipping, noise and accounting."""
