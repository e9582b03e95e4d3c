"""The contract of sources, and data as a table over sources: chosen rows, added columns."""
