"""Data for measurements: the demo set, samples of a data set, repetitions."""
