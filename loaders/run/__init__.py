"""Who makes batches ahead of time, and who carries them to the consumer."""
