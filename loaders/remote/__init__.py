"""Data sets in object storage: requests ahead of their use, retries, and a local copy of what was fetched."""
