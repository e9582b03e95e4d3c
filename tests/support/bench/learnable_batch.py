"""Small random images with label-dependent brightness, and a model that learns them within a few steps."""

import torch
from torch import nn


def learnable_batch(size=16, *, seed=0, padding=()):
    """Return images float32 (size, 3, 12, 12) and labels of four classes, -1 in the rows of `padding`."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (size,), generator=generator)
    images = torch.randn(size, 3, 12, 12, generator=generator) + labels.view(-1, 1, 1, 1)
    labels[list(padding)] = -1
    return images, labels


def tiny_model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32, 4),
        )
