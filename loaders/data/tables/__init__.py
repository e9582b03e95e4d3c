"""Data sets that are lists or tables of image paths and labels."""
