"""Builds caches: encodes each image and writes the files."""
