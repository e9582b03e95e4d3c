"""Clocks, rates, resources and the environment of a measurement."""
