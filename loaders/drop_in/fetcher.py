"""Fetcher takes the place of torch's fetchers in a process: it knows the data set's place, and can begin at one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data._utils import pin_memory
from torch.utils.data._utils.fetch import _IterableDatasetFetcher
from torch.utils.data._utils.worker import _IterableDatasetStopIteration

from penstock.loaders.drop_in.stateful import is_stateful, load_state, save_starts, save_states

BATCHES, ENDED, RANDOM, DATASET, ITERATOR = "batches", "ended", "random", "dataset", "iterator"
# What one process has served: how many batches, whether its iterable data set is used up, from which random numbers it
# was read, and the states of the data set and its iterator.
ProcessState = dict[str, Any]


@dataclass
class Fetched:
    """A batch with the state of the process that made it, and with the first one the state that this began in."""

    batch: Any
    state: ProcessState
    start: ProcessState | None = None

    def pin_memory(self) -> Fetched:
        """Serve torch's thread that pins memory."""
        return replace(self, batch=pin_memory.pin_memory(self.batch))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Ended(_IterableDatasetStopIteration):
    """Says that an iterable data set is used up, and in which state it is."""

    state: ProcessState | None = None


class Fetcher:
    """Fetch batches as torch's fetcher `plain` does, from the place that `resume` holds.

    An iterable data set that does not keep its own place is read again up to there.

    Attributes:
        start: the state in which this begins; {} where nothing keeps its place. Of the data set it is `before`: that
            before it was asked for its iterator, since it is sent to a state before it is asked again.
        on_place: called once it was.
    """

    def __init__(self, plain: Any, resume: ProcessState | None, before: ProcessState) -> None:
        self.plain = plain
        self._iterator = plain.dataset_iter if isinstance(plain, _IterableDatasetFetcher) else None
        keepers = {DATASET: plain.dataset, ITERATOR: self._iterator}
        self._keepers = {name: keeper for name, keeper in keepers.items() if is_stateful(keeper)}
        self._is_own_iterator = self._iterator is plain.dataset
        self._batches, self._skip = 0, 0
        self.on_place: Callable[[], None] = _do_nothing
        if resume and self._iterator is not None:
            load_state(self._iterator, ITERATOR, resume)
            self._batches = resume.get(BATCHES, 0)
            self._skip = 0 if ITERATOR in resume or DATASET in resume else self._batches
            plain.ended = bool(resume.get(ENDED)) and not self._skip
        self.start = before | save_starts({n: k for n, k in self._keepers.items() if n == ITERATOR})

    def fetch(self, index: Any) -> Any:
        """Return the batch of the samples that `index` names."""
        if self._skip:
            collate, self.plain.collate_fn = self.plain.collate_fn, _drop
            try:
                while self._skip:
                    self._skip -= 1
                    self.plain.fetch(index)
            finally:
                self.plain.collate_fn = collate
            self.on_place()
        self._batches += 1
        return self.plain.fetch(index)

    def state(self, *, ended: bool = False) -> ProcessState | None:
        """Return what is needed to go on after the latest batch; None where the data set keeps no place."""
        left_out = ITERATOR if ended else DATASET if self._is_own_iterator else None
        found = save_states({name: keeper for name, keeper in self._keepers.items() if name != left_out})
        if self._iterator is not None and not ended:
            found |= {BATCHES: self._batches} | ({ENDED: True} if self.plain.ended else {})
        return found or None


def begin_dataset(dataset: Any, resume: ProcessState) -> ProcessState:
    """Send a data set to its state in `resume`, before it is asked for an iterator; return the one that it is in."""
    if not isinstance(dataset, Iterator):
        load_state(dataset, DATASET, resume)
        return save_starts({DATASET: dataset} if is_stateful(dataset) else {})
    if DATASET in resume and ITERATOR not in resume:  # of the end of an epoch
        iter(dataset)  # it may have nowhere to put a state before
        load_state(dataset, DATASET, resume)
    return {}


def _drop(samples: Any) -> None:
    """Collate nothing."""


def _do_nothing() -> None:
    """Go on."""
