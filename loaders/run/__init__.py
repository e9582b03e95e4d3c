"""Engines that make batches ahead of time, and feeds that send them to the consumer."""
