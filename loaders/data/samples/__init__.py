"""The table of samples: containers, the places of samples in them, and columns of values."""
