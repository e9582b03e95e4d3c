"""Folders of images and arrays, and the reader of indexed samples."""
