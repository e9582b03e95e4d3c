"""What a machine could do: demo data, ceilings, and the search for the fastest settings."""
