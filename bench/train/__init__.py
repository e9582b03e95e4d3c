"""A training run: the step, its loop, checkpoints, finders, ablation, and signals."""
