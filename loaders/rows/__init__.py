"""From indices to the rows of a batch: read, plan, decode, draw, transform."""
