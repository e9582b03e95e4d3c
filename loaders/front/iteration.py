"""An iteration over a loader: where it began, where the next one begins, and which thread may take its batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar

from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.ledger import EpochLedger
from penstock.pipelines.messages.user_warnings import warn_user

Item = TypeVar("Item")


class OneThread(Iterator[Item]):
    """An iterator over `items` that only one thread may use at once.

    Args:
        turn: lock of the thread that takes an item.
        wait_s: returns how long a thread may wait for the lock.
        refusal: returns the error for a thread that did not get the lock.
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


@dataclass(eq=False)
class Iteration:
    """Where an iteration begins, what came before it, and how many steps it has served.

    Attributes:
        begin: the place of its first batch.
        left: where the previous iteration ended or was left; None if the loader was moved to this place.
        looks: number of consecutive iterations just before it that were left after a single batch.
        ledger: the epoch's ledger when the iteration began.
        steps: batches taken; 0 while it is fresh.
    """

    begin: Cursor
    left: Cursor | None = None
    looks: int = 0
    ledger: EpochLedger | None = None
    steps: int = 0

    @property
    def is_look(self) -> bool:
        """Whether it served a single batch, such as for a picture or a graph."""
        return self.steps == 1

    def place_after(self, now: Cursor) -> Cursor:
        """Return where the next iteration begins if this one is left at `now`.

        After a look, that is where this one began. A second look in a row means that the program takes each batch with
        next(iter(loader)). torch's samplers then serve another batch each time; here it is the first of the next epoch.
        """
        if not self.steps:
            return now
        return self.begin if self.is_look and not self.looks else Cursor(now.epoch + 1, 0)

    def warn_if_left(self, *, shuffled: bool, by_update: bool) -> None:
        """Warn that the program may not expect the next epoch, after this iteration was left early."""
        if self.is_look and self.looks == 1 and shuffled:
            warn_user(
                "next(iter(loader)) was called repeatedly: the second call returns the first batch again, each further "
                "call begins a new epoch; to get all batches keep the iterator, batches = iter(loader), and call "
                "next(batches)"
            )
        if by_update:
            warn_user(
                "an epoch was left early, but ByUpdate counts its remaining batches as served, so sizes change "
                "earlier: iterate over whole epochs, or set sizes by epoch, such as {0: 128, 6: 160}"
            )
