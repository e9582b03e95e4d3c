"""The search for the fastest settings on this machine."""
