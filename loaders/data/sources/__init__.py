"""What a source is, and data as a table over sources: chosen rows, added columns."""
