"""Folders of images and arrays, and the reader of samples that an index locates."""
