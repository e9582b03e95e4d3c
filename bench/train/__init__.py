"""A training run: loop, checkpoints, finders and ablation."""
