"""A source of the user's own, some of whose samples do something terrible to the process that reads them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
from photo_folder import photo


class FaultySource:
    """`count` photos in memory. Reading sample i first calls `at[i]`; every read takes at least `delay_s` seconds."""

    classes = (b"only",)
    fingerprint = "0" * 32
    skipped: Mapping[str, int] = {}

    def __init__(self, count: int, at: Mapping[int, Callable[[], object]], *, delay_s: float = 0.0) -> None:
        self._photos = [photo(number) for number in range(min(count, 8))]
        self._count, self._at, self._delay_s = count, dict(at), delay_s

    def __len__(self) -> int:
        return self._count

    def read(self, index: int) -> bytes:
        time.sleep(self._delay_s)
        if index in self._at:
            self._at[index]()
        return self._photos[index % len(self._photos)]

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.zeros_like(indices)

    def path(self, index: int) -> bytes:
        return b"memory/%d.jpg" % index

    def describe(self) -> str:
        return f"{self._count} photos in memory"


class SlowToArrive(FaultySource):
    """Keeps a worker busy before it can read its first sample."""

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        time.sleep(60)


class OpenFifo:
    """Opens a FIFO without a writer, which blocks like dead storage."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self) -> None:
        with open(self._path, "rb") as file:
            file.read()


def strike(number: int) -> None:
    """Send a signal to the process that reads."""
    os.kill(os.getpid(), number)
    time.sleep(60)  # the signal may be taken by another thread of this process, a moment later


def exit_quietly() -> None:
    os._exit(3)


def leave_by_system_exit() -> None:
    raise SystemExit(4)


def terminate_a_program() -> None:
    """What a source may do with a decoder of its own."""
    program = subprocess.Popen(["sleep", "1000"])
    program.terminate()
    if program.wait(timeout=600) != -signal.SIGTERM:
        raise RuntimeError("it was not terminated")


def divide_by_zero() -> None:
    _ = 1 // 0


def run_out_of_memory() -> None:
    raise MemoryError("no room for 7 bytes")


def raise_stop_iteration() -> None:
    raise StopIteration("from a generator of the user's")


class UnpicklableError(Exception):
    """An exception that cannot be sent to another process."""

    def __init__(self, reason: str, handle: object) -> None:
        super().__init__(reason)
        self.handle = handle


def raise_what_cannot_be_sent() -> None:
    raise UnpicklableError("holds a lock", lambda: None)
