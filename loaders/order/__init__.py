"""Which samples are served, in which order, and what became of them."""
