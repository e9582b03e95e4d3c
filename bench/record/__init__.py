"""What was asked, what was measured, and how two records compare."""
