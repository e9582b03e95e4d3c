"""From host to device: pinned slots and a side stream."""
