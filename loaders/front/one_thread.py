"""Refuses a second thread that asks a loader for a batch while the first one waits for its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

Item = TypeVar("Item")


class OneThread(Iterator[Item]):
    """Iterate over `items`, one thread at a time.

    Args:
        turn: held by the thread that asks.
        wait_s: returns how long a thread may wait for its turn.
        refusal: returns the error for a thread that did not get it.
    """

    def __init__(
        self,
        items: Generator[Item, None, None],
        turn: threading.RLock,
        wait_s: Callable[[], float],
        refusal: Callable[[], Exception],
    ) -> None:
        self._items, self._turn, self._wait_s, self._refusal = items, turn, wait_s, refusal
        self.close = items.close

    def __next__(self) -> Item:
        if not self._turn.acquire(timeout=self._wait_s()):
            raise self._refusal()
        try:
            return next(self._items)
        finally:
            self._turn.release()
