"""Map-style datasets with samples that record where they were made; a module, since workers import it by name."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Numbered(Dataset[Any]):
    """Sample i is i; some samples do harm."""

    def __init__(self, length: int, harm: dict[int, str] | None = None) -> None:
        self.length, self.harm = length, harm or {}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        harm = self.harm.get(index)
        if harm == "raise":
            raise KeyError(f"sample {index}")
        if harm == "sleep":
            time.sleep(1000)
        elif harm == "hold the interpreter lock":
            ctypes.PyDLL(None).sleep(1000)
        elif harm == "unsendable":
            return threading.Lock()
        elif harm == "wait":  # so that later samples are finished before this one
            time.sleep(0.3)
        elif harm == "wait long":
            time.sleep(1.2)
        elif harm is not None:
            os.kill(os.getpid(), getattr(signal, harm))
            time.sleep(1000)
        return index


class Large(Numbered):
    """Samples that take many writes to send."""

    def __getitem__(self, index: int) -> Any:
        return b"x" * 50_000_000


class Circumstances(Numbered):
    """Sample i: process, its torch threads, state of SIGINT, kinds of seed, result of the user's worker_init_fn."""

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return {
            "pid": os.getpid(),
            "num_threads": torch.get_num_threads(),
            "ignores_ctrl_c": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
            "worker": info.id if info else -1,
            "seed": info.seed if info else -1,
            "draws": (random.random(), float(np.random.random()), float(torch.rand(()))),  # noqa: NPY002
            "function_modes": torch._C._len_torch_function_stack(),  # each costs time at every call
            "marked": os.environ.get("NUMBERED_MARK", ""),
        }


class Stream(IterableDataset[Any]):
    """0, 1, ... length - 1, divided among the workers."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        yield from range(info.id if info else 0, self.length, info.num_workers if info else 1)


class Pair(NamedTuple):
    """A named tuple, like those of users' collate functions."""

    images: Any
    labels: Any


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def mark(worker_id: int) -> None:
    os.environ["NUMBERED_MARK"] = f"worker {worker_id}"


def refuse_shared_memory(worker_id: int) -> None:
    """Forbid this worker to let any file grow; torch's shared memory is one."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
