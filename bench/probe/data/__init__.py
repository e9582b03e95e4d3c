"""Data to measure on: the demo set, samples of a data set, repetitions."""
