"""What was asked and what was measured: clocks, rates, resources, and the record of a run."""
