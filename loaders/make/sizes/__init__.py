"""Sizes of images: of all images, by epoch, and in buckets of similar aspect ratio."""
