"""One benchmark run, from the data to its record."""
