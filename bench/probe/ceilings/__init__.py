"""Ceilings: the rate of each part of the input pipeline alone."""
