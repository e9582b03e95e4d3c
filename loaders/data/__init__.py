"""Where samples are, what belongs to them, and how their bytes are read."""
