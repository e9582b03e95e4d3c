"""The table of samples: the containers that hold them, and where in these they lie."""
