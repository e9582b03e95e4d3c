"""From indices to one batch: read, plan, decode, draw, transform."""
