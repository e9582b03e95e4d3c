"""The limits of a machine: demo data, ceilings, and the search for the fastest settings."""
