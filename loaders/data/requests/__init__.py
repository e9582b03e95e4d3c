"""Requests to a storage in general: time limits, repetitions, how many at once."""
