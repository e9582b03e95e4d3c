"""What limits a run, what to change, and what the change would give."""
