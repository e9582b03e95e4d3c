"""The sample stage in C: a whole batch is read, checked, decoded and resized in one call."""
