"""From indices to one batch: read, plan, decode, resize, transform."""
