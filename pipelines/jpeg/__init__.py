"""JPEG headers, strips of JPEG data, and lossless re-coding."""
