"""Indexes of samples: saved for a user, or kept in a bucket and read by all nodes."""
