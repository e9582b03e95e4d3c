"""Parts and mixtures of sources: subsets, splits, limits per class."""
