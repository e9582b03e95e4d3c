"""Labels of every kind: how classes are numbered, and where other labels are kept."""
