"""Settings and measurements: clocks, rates, resources, and the record of a run."""
