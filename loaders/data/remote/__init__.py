"""Data in object storage: requests ahead of their use, retries, a local copy."""
