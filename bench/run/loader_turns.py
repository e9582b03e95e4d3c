"""The loader that a run measures, opened once or for each measurement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from penstock.bench.ceilings.store import find_remote
from penstock.bench.search.candidate import Candidate, LoaderOpener
from penstock.loaders.loader import Loader
from penstock.loaders.stream.ledger import EpochLedger


class LoaderTurns:
    """Hands out the loader for one measurement at a time.

    It stays open in between, unless the data are remote: then it would go on fetching while others are measured, and
    its next measurement would begin with what it had fetched.

    stack: closes a loader that stays open.
    """

    def __init__(self, opener: LoaderOpener, candidate: Candidate, stack: ExitStack) -> None:
        self._opener, self._candidate = opener, candidate
        self._ledgers: list[EpochLedger] = []
        self._open: Loader | None = None
        if find_remote(opener.source(cached=candidate.cached)) is None:
            self._open = stack.enter_context(opener.open(candidate))
        with self.turn() as loader:
            self._about = loader.describe()

    @property
    def about(self) -> dict[str, object]:
        """What the loader says of itself."""
        return self._about if self._open is None else self._open.describe()

    @contextmanager
    def turn(self) -> Iterator[Loader]:
        """Yield the loader."""
        if self._open is not None:
            yield self._open
            return
        with self._opener.open(self._candidate) as loader:
            yield loader
            self._ledgers += loader.ledgers()

    def ledgers(self) -> list[EpochLedger]:
        """Return the ledgers of all epochs that were begun."""
        return self._ledgers if self._open is None else self._open.ledgers()
