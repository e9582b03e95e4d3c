"""Keeps decoded row groups in memory within a limit of bytes."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future

from penstock.loaders.data.arrow.arrow_parquet import ImageGroup


class GroupCache:
    """A cache of the most recently used groups: at most `limit_bytes`, but at least the latest group.

    Threads may share it: one thread loads a group, and others that need it wait. It is empty after pickling or a fork.

    Attributes:
        limit_bytes: the limit.
        loads: number of groups loaded.
        evictions: number of groups evicted.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._empty()

    def _empty(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        self.loads = self.evictions = self._num_bytes = 0
        self._groups: OrderedDict[Hashable, Future[ImageGroup]] = OrderedDict()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._groups

    def get(self, key: Hashable, load: Callable[[], ImageGroup]) -> ImageGroup:
        """Return the group `key`, loaded with `load` unless it is cached. Raises as `load` does."""
        if os.getpid() != self._pid:  # in a fork: the lock may be held by a thread that does not exist here
            self._empty()
        with self._lock:
            waiting = self._groups.get(key)
            if waiting is not None:
                self._groups.move_to_end(key)
            else:
                mine = self._groups[key] = Future()
                self.loads += 1
        if waiting is not None:
            return waiting.result()
        try:
            group = load()
        except BaseException as error:
            with self._lock:
                del self._groups[key]
            mine.set_exception(error)
            raise
        mine.set_result(group)
        with self._lock:
            self._num_bytes += group.num_bytes
            self._evict(key)
        return group

    def _evict(self, newest: Hashable) -> None:
        for key, future in list(self._groups.items()):
            if self._num_bytes <= self.limit_bytes:
                return
            if key != newest and future.done():
                del self._groups[key]
                self._num_bytes -= future.result().num_bytes
                self.evictions += 1

    def __reduce__(self) -> tuple[object, ...]:
        return GroupCache, (self.limit_bytes,)
