"""Small random images with label-dependent brightness, learned within a few steps."""

import torch


def learnable_batch(size=16, *, seed=0, padding=()):
    """Return images float32 (size, 3, 12, 12) and labels of four classes, -1 in the rows of `padding`."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (size,), generator=generator)
    images = torch.randn(size, 3, 12, 12, generator=generator) + labels.view(-1, 1, 1, 1)
    labels[list(padding)] = -1
    return images, labels
