"""One training step: model, optimiser, schedule and precision."""
