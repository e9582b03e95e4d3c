"""What the started processes of these tests do: a module of its own, since a worker imports its function by name."""

from __future__ import annotations

import gc
import os
from multiprocessing.connection import Connection

from penstock.loaders.shared_memory import SharedArray


def num_open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def double_shared(first: SharedArray, second: SharedArray, again: SharedArray, answers: Connection) -> None:
    answers.send((int(first.array.sum()), num_open_files(), first is again))
    first.array[...] *= 2
    second.array[...] = 7.5
    first.close()
    second.close()
    answers.send(num_open_files())
