"""Finds this process's rank and the world size."""

from __future__ import annotations

import os

import torch


def distributed_place(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Return (rank, world size): as given, else from torch.distributed, its environment variables, or (0, 1).

    Raises ValueError if only one of the two is given.
    """
    if (rank is None) != (world_size is None):
        raise ValueError("give both rank and world_size, or neither")
    if rank is not None and world_size is not None:
        return rank, world_size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return 0, 1
