"""An iteration over a loader: where it began, where the next one begins, and who may take its batches."""

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


@dataclass(eq=False)
class Iteration:
    """Hold where an iteration begins, what came before it, and the steps that it has served.

    Attributes:
        begin: the place of its first batch.
        left: where the iteration before it ended or was left; None if the loader was sent to this place.
        looks: iterations just before it that were left after a single batch, one after the other.
        ledger: of that epoch, when the iteration began.
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

        After a look that is where this one began. The second look in a row is one of a program that takes each batch by
        next(iter(loader)): torch's samplers serve it another batch each time, and here it gets that of the next epoch.
        """
        if not self.steps:
            return now
        return self.begin if self.is_look and not self.looks else Cursor(now.epoch + 1, 0)

    def warn_if_left(self, *, shuffled: bool, by_update: bool) -> None:
        """Warn where the next iteration, in another epoch, is not what the program expects; this one was left early."""
        if self.is_look and self.looks == 1 and shuffled:
            warn_user(
                "next(iter(loader)) was called again and again: the first look at a batch is repeated, each further "
                "one begins a new epoch; to serve all batches keep the iterator, batches = iter(loader), and call "
                "next(batches)"
            )
        if by_update:
            warn_user(
                "an epoch was left early, and ByUpdate counts its other batches as if they had been served, so sizes "
                "change sooner: serve whole epochs, or give sizes by epoch, such as {0: 128, 6: 160}"
            )
