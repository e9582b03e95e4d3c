"""From one image to what the cache stores of it, and from a source to a whole cache."""
