"""Beginning says where an iteration began, and where the next one begins if that is left early."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.ledger import EpochLedger
from penstock.pipelines.messages.user_warnings import warn_user


@dataclass
class Beginning:
    """Hold where an iteration began, that epoch's ledger by then, and the steps that it has served since.

    Attributes:
        looks: iterations just before it that were left after a single batch, one after the other.
    """

    cursor: Cursor
    ledger: EpochLedger | None
    looks: int = 0
    steps: int = 0

    @property
    def is_look(self) -> bool:
        """Whether it served a single batch, such as for a picture or a graph."""
        return self.steps == 1

    def place_after(self, now: Cursor) -> Cursor:
        """Return where the next iteration begins if this one is left at `now`, in the middle of an epoch.

        After a look that is where this one began. The second look in a row is one of a program that takes each batch by
        next(iter(loader)): torch's samplers serve it another batch each time, and here it gets that of the next epoch.
        """
        return self.cursor if self.is_look and not self.looks else Cursor(now.epoch + 1, 0)

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
