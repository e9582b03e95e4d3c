"""Building, resuming and verifying a cache."""
