"""Repeated augmentation: each sample several times in a row, as views for different ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.loaders.order.permutation import Index, Permutation


@dataclass(frozen=True, kw_only=True)
class RepeatShuffled:
    """Shuffle the samples differently in each epoch, and serve each `copies` times in a row.

    The order is that of DeiT's RASampler (samplers.py of facebookresearch/deit) and of timm's RepeatAugSampler
    (timm/data/distributed_sampler.py): position p has the sample at place p // copies of the permutation. An epoch of n
    positions serves n / copies different samples. Schedule gives the copies in a step to different ranks.

    Attributes:
        n: positions per epoch, at most copies * samples.
        seed: seed of the shuffle.
        samples: number of samples.
        copies: how often each sample is served.
    """

    n: int
    seed: int
    samples: int
    copies: int
    repeats: bool = True

    @property
    def name(self) -> str:
        return f"repeats-1 of {self.copies} in {self.n}"

    def __call__(self, epoch: int, positions: Index) -> Index:
        return Permutation.of_epoch(self.samples, self.seed, epoch)(np.asarray(positions, np.int64) // self.copies)
