"""Threads for blocking requests, as many at once as a pace allows."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from penstock.loaders.data.requests.pace import Pace


class PacedThreads:
    """Calls functions in threads, in their order; a thread is started when all others are busy."""

    def __init__(self, pace: Pace) -> None:
        self._pace, self._pool = pace, ThreadPoolExecutor(pace.most, "penstock-fetch")
        self._waiting = collections.deque[Callable[[], None]]()
        self._num_running, self._lock = 0, threading.Lock()

    def submit(self, call: Callable[[], None]) -> None:
        """Call a function, which must not raise, as soon as the pace allows it."""
        with self._lock:
            self._waiting.append(call)
            if self._num_running >= self._pace.limit:
                return
            self._num_running += 1
        self._pool.submit(self._run)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or self._num_running > self._pace.limit:
                    self._num_running -= 1
                    return
                call = self._waiting.popleft()
                may_grow = bool(self._waiting) and self._num_running < self._pace.limit
                self._num_running += may_grow
            if may_grow:
                self._pool.submit(self._run)
            call()
