"""From one image to what the cache stores of it."""
