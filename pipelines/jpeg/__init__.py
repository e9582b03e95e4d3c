"""JPEG headers, and the layout of JPEGs with restart markers."""
