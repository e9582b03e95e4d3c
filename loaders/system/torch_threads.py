"""Threads of ours in which torch works alone, without its own pool of threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


def run_alone(ready: threading.Semaphore, job: Callable[[], None]) -> None:
    """Call `job` in a new thread, whose operations of torch use no other threads. Start it within `keep_own_number`."""
    torch.get_num_threads()  # otherwise the first operation of this thread would set the number of the process
    torch.set_num_threads(1)  # of this thread
    ready.release()
    job()


@contextmanager
def keep_own_number() -> Iterator[threading.Semaphore]:
    """Keep the number of torch's threads in all threads but those that the block starts with `run_alone`.

    Yields their semaphore, which the block must acquire once for each of them.
    """
    own = torch.get_num_threads()
    try:
        yield threading.Semaphore(0)
    finally:  # torch gives later threads the number that any thread has set last
        torch.set_num_threads(own)
