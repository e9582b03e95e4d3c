"""The front door: opening data, choosing a backend, and the loader that iterates."""
