"""The HDF5 cache: its format and how it is read."""
