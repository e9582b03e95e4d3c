"""Assigns shards to the processes that build a set, on one or several machines, and lets them wait for each other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from penstock.loaders.order.ranks import distributed_place, is_joined
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import checked_int, set_checked

_JOIN = timedelta(minutes=30)  # until all ranks have started
_BUILD = timedelta(days=14)  # until the slowest rank has built its shards


@dataclass(frozen=True)
class Ranks:
    """The rank of a process among the builders.

    Attributes:
        rank: its number, from 0.
        world_size: number of processes.
        group: group of torch.distributed; None if the processes cannot wait for each other (a job array).
    """

    rank: int = 0
    world_size: int = 1
    group: Any = None

    def __post_init__(self) -> None:
        set_checked(self, world_size=checked_int("world_size", self.world_size, 1))
        set_checked(self, rank=checked_int("rank", self.rank, 0, self.world_size - 1))

    def shards(self, shards: int) -> list[int]:
        """Return the shards that this rank builds."""
        return list(range(self.rank, shards, self.world_size))

    def meet(self) -> None:
        """Wait for every rank. Raises LoaderError E-WORKER if one of them has ended."""
        if self.group is None:
            return
        try:
            dist.barrier(group=self.group)
        except RuntimeError as error:
            cause = "another rank ended before its shards were built"
            fix = "see the errors of the other ranks; run it again to continue"
            raise LoaderError("E-WORKER", cause, fix=fix, rank=self.rank) from error


@contextlib.contextmanager
def build_ranks(*, arrays: bool) -> Iterator[Ranks]:
    """Yield the ranks: from torchrun's variables, else from a SLURM job array, else a single rank.

    The ranks of torch.distributed wait for each other in a gloo group. If torch.distributed is initialised here, it is
    destroyed at the end. `arrays`: whether the tasks of a job array count as ranks; they may also be independent jobs.
    Raises ValueError for a job array numbered with gaps.
    """
    # torchrun's variables take precedence over an array, however it is numbered: each array task may be its own job.
    array = array_place(os.environ) if arrays and not is_joined() and not os.environ.get("RANK") else None
    rank, world_size = array or distributed_place()
    if array is None and world_size > 1 and dist.is_available() and not is_joined() and "MASTER_ADDR" in os.environ:
        dist.init_process_group("gloo", timeout=_JOIN)
        try:
            yield Ranks(rank, world_size, dist.new_group(backend="gloo", timeout=_BUILD))
        finally:
            dist.destroy_process_group()
    elif world_size > 1 and is_joined():
        yield Ranks(rank, world_size, dist.new_group(backend="gloo", timeout=_BUILD))
    else:
        yield Ranks(rank, world_size)


def array_place(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Return (rank, world size) of a task of a SLURM job array, None outside of one. Raises ValueError for gaps."""
    try:
        task, count = int(environment["SLURM_ARRAY_TASK_ID"]), int(environment["SLURM_ARRAY_TASK_COUNT"])
        first = int(environment.get("SLURM_ARRAY_TASK_MIN", "0"))
        rank = (task - first) // max(1, int(environment.get("SLURM_ARRAY_TASK_STEP", "1")))
    except (KeyError, ValueError):
        return None
    if not 0 <= rank < count:  # an array with gaps, such as 1,5,7
        raise ValueError(f"SLURM array task {task} of {count} tasks: number them without gaps (--array=0-{count - 1})")
    return rank, count
