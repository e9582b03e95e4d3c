"""Sizes of images: of all in a source, of each epoch, and buckets of like aspect."""
