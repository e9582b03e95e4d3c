"""Writes the metrics of a loader as one line of JSON a minute."""

from __future__ import annotations

import json
import os
import threading
import time
from types import TracebackType

from penstock.loaders.metrics.values import HasStats, loader_metrics
from penstock.pipelines.checked import checked_int, checked_number


class JsonLines:
    """Append a line of JSON with time, rank and metrics to a file every `every_s` seconds, and at the end.

    Use it in a `with` block around the training loop, each rank with a file of its own or all with one: a line is one
    write. A thread writes, which sleeps in between. Raises OSError if the file cannot be opened, ValueError.
    """

    def __init__(self, loader: HasStats, path: str | os.PathLike[str], *, every_s: float = 60.0, rank: int = 0) -> None:
        self._loader, self._every_s = loader, checked_number("every_s", every_s, high=threading.TIMEOUT_MAX, above=0)
        self._rank = checked_int("rank", rank, 0)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-metrics", daemon=True)

    def __enter__(self) -> JsonLines:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()  # at most a line that it writes, and the next line here writes one, too
        self._write()
        os.close(self._file)

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self._write()

    def _write(self) -> None:
        line = {"time": round(time.time(), 3), "rank": self._rank, **loader_metrics(self._loader, prefix="")}
        os.write(self._file, json.dumps(line).encode() + b"\n")
