"""Fetches batches as torch's fetchers do, and saves and loads the place of the data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data._utils import pin_memory
from torch.utils.data._utils.fetch import _IterableDatasetFetcher
from torch.utils.data._utils.worker import _IterableDatasetStopIteration

from penstock.loaders.drop_in.stateful import keep_stateful, load_state, save_starts, save_states
from penstock.loaders.run.feed.copies import pinned_like
from penstock.loaders.run.feed.tensor_feed import lock_tensors

BATCHES, ENDED, RANDOM, DATASET, ITERATOR = "batches", "ended", "random", "dataset", "iterator"
# What one process has served: number of batches, whether its iterable data set is exhausted, the generators that it was
# read with, and the states of the data set and its iterator.
ProcessState = dict[str, Any]


@dataclass
class Fetched:
    """A batch on its way from a worker.

    Attributes:
        batch: as the collate function returned it.
        state: that of the process that made it; None if the data set is not stateful.
        start: the state in which that process began, with its first batch.
        for_device: the loader sends it to a device, without the user's pin_memory=True.
    """

    batch: Any
    state: ProcessState | None
    start: ProcessState | None = None
    for_device: bool = False

    def pin_memory(self) -> Fetched:
        """Pin the batch; torch's thread for that calls this.

        Unless the user asked for torch's way, which may change the types of tensors and fails for some, it is what
        TensorFeed would do in the consumer's thread.
        """
        locked = lock_tensors(self.batch, pinned_like) if self.for_device else pin_memory.pin_memory(self.batch)  # type: ignore[no-untyped-call]
        return replace(self, batch=locked)


@dataclass(frozen=True)
class Ended(_IterableDatasetStopIteration):
    """Says that an iterable data set is exhausted, and its state then."""

    state: ProcessState | None = None


class Fetcher:
    """Fetch batches as torch's fetcher `plain` does, from the place in `resume`.

    An iterable data set that is not stateful is read again up to there.

    Attributes:
        start: the state in which this begins; {} if nothing is stateful. The data set's part is `before`, its state
            before its iterator was made, because a state is loaded before the iterator is made.
        on_place: called once the place is reached, if batches had to be skipped.
    """

    def __init__(self, plain: Any, resume: ProcessState | None, before: ProcessState) -> None:
        self.plain = plain
        self._iterator = plain.dataset_iter if isinstance(plain, _IterableDatasetFetcher) else None
        self._stateful = keep_stateful({DATASET: plain.dataset, ITERATOR: self._iterator})
        self._is_own_iterator = self._iterator is plain.dataset
        self._batches, self._skip = 0, 0
        self.on_place: Callable[[], object] | None = None
        if resume and self._iterator is not None:
            load_state(self._iterator, ITERATOR, resume)
            self._batches = resume.get(BATCHES, 0)
            self._skip = 0 if ITERATOR in resume or DATASET in resume else self._batches
            plain.ended = bool(resume.get(ENDED)) and not self._skip
        self.start = before | save_starts({ITERATOR: self._iterator})

    def fetch(self, index: object) -> Any:
        """Return the batch of the samples that `index` names."""
        if self._skip:
            collate, self.plain.collate_fn = self.plain.collate_fn, lambda samples: None
            try:
                while self._skip:
                    self._skip -= 1
                    self.plain.fetch(index)
            finally:
                self.plain.collate_fn = collate
            if self.on_place is not None:
                self.on_place()
        self._batches += 1
        return self.plain.fetch(index)

    def state(self, *, ended: bool = False) -> ProcessState | None:
        """Return what is needed to continue after the latest batch; None if the data set is not stateful."""
        left_out = ITERATOR if ended else DATASET if self._is_own_iterator else None
        found = save_states({name: owner for name, owner in self._stateful.items() if name != left_out})
        if self._iterator is not None and not ended:
            found |= {BATCHES: self._batches} | ({ENDED: True} if self.plain.ended else {})
        return found or None


def begin_dataset(dataset: object, resume: ProcessState) -> ProcessState:
    """Load the state of a data set from `resume`, before its iterator is made; return the state it is then in."""
    if not isinstance(dataset, Iterator):
        load_state(dataset, DATASET, resume)
        return save_starts({DATASET: dataset})
    if DATASET in resume and ITERATOR not in resume:  # of the end of an epoch
        iter(dataset)  # it may have no place for a state before
        load_state(dataset, DATASET, resume)
    return {}
