"""A user-defined source; some samples harm the process that reads them."""

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
    """`count` photos in memory. Reading sample i first calls `at[i]`; each read takes at least `delay_s` seconds."""

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
    """Delays a worker before its first read."""

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
    time.sleep(60)  # another thread of this process may receive the signal a moment later


def exit_quietly() -> None:
    os._exit(3)


def leave_by_system_exit() -> None:
    raise SystemExit(4)


def terminate_a_program() -> None:
    """Terminate a child process, as a source may do with its own decoder."""
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


def raise_unpicklable_error() -> None:
    raise UnpicklableError("holds a lock", lambda: None)
