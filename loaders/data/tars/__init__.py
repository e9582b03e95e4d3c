"""Data sets in tar files: their index, and reading members by offset."""
