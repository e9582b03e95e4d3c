"""Which samples are served, in which order, and with which result."""
