"""The table of samples: containers, where samples lie in these, and columns of values."""
