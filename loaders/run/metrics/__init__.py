"""Metrics of a loader, for tools that monitor a training run."""
