"""Data in object storage: requests ahead of use, retries, a local copy."""
