"""Compares the mixing of a shuffle by blocks with the full shuffle: `python tests/studies/order_mixing.py`.

The data is sorted by class, like class folders and many tars, which is the hardest case. For each order it prints the
mean distance of neighbours in the stream (1 for independent draws), the mean number of classes in a batch, and the loss
of a small classifier on held-out samples after each epoch, averaged over several seeds.
"""

from __future__ import annotations

from statistics import fmean

import numpy as np
import torch

from penstock.loaders.order.block_order import BlockShuffled
from penstock.loaders.order.order import InOrder, Order, Shuffled

CLASSES, PER_CLASS, FEATURES = 100, 640, 64
N, BATCH, EPOCHS, SEEDS = CLASSES * PER_CLASS, 128, 3, 3


def orders(seed: int) -> dict[str, Order]:
    """Return the orders by name."""
    made: dict[str, Order] = {"full shuffle": Shuffled(N, seed)}
    for group in (256, 64, 16, 4):
        made[f"blocks of 64, {group} at a time"] = BlockShuffled(n=N, seed=seed, block=64, group=group)
    return {**made, "not shuffled": InOrder(N)}


def data(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return features and labels for training, sorted by class, and for validation."""
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    labels = torch.arange(CLASSES).repeat_interleave(PER_CLASS)
    held_out = torch.arange(CLASSES).repeat_interleave(20)
    return (
        centres[labels] + 2.5 * torch.randn(N, FEATURES, generator=generator),
        labels,
        centres[held_out] + 2.5 * torch.randn(len(held_out), FEATURES, generator=generator),
        held_out,
    )


def losses(order: Order, seed: int) -> list[float]:
    """Train a classifier on the stream of `order`, and return its loss on held-out samples after each epoch."""
    generator = torch.Generator().manual_seed(seed)
    features, labels, more, held_out = data(generator)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.ReLU(), torch.nn.Linear(256, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = []
    for epoch in range(EPOCHS):
        indices = torch.from_numpy(order(epoch, np.arange(N)))
        for batch in indices.split(BATCH):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(features[batch]), labels[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            found.append(float(torch.nn.functional.cross_entropy(model(more), held_out)))
    return found


def main() -> None:
    """Print the table."""
    print(f"{'order':32} distance  classes/batch  loss after each epoch")
    for name in orders(0):
        indices = orders(0)[name](0, np.arange(N))
        distance = np.abs(np.diff(indices)).mean() / (N / 3)
        classes = fmean(len(np.unique(batch // PER_CLASS)) for batch in np.split(indices, N // BATCH))
        curves = np.array([losses(orders(seed)[name], seed) for seed in range(SEEDS)]).mean(0)
        print(f"{name:32} {distance:8.2f} {classes:14.1f}  {' '.join(f'{loss:.3f}' for loss in curves)}", flush=True)


if __name__ == "__main__":
    main()
