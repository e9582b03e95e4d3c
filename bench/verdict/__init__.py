"""The limit of a run, the changes that help, and their predicted gain."""
