"""Batches made ahead of time, by processes or threads, in reusable slots of memory."""
