"""Fetchers of batches like torch's, which also save and load the place of the data set."""

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
# State of one process: number of served batches, whether its iterable data set is exhausted, the random generators when
# reading began, and the states of the data set and its iterator.
ProcessState = dict[str, Any]


@dataclass
class Fetched:
    """A batch from a worker.

    Attributes:
        batch: result of the collate function.
        state: state of the worker process; None if the data set is not stateful.
        start: state in which the process began, with its first batch.
        for_device: whether the loader sends it to a device, without the user's pin_memory=True.
    """

    batch: Any
    state: ProcessState | None
    start: ProcessState | None = None
    for_device: bool = False

    def pin_memory(self) -> Fetched:
        """Return the batch in pinned memory. Called by torch's thread for pinned memory.

        With the user's pin_memory=True torch's function is used, which may change the types of tensors and fails for
        some. Otherwise the tensors are locked as TensorFeed would do it in the consumer's thread.
        """
        locked = lock_tensors(self.batch, pinned_like) if self.for_device else pin_memory.pin_memory(self.batch)  # type: ignore[no-untyped-call]
        return replace(self, batch=locked)


@dataclass(frozen=True)
class Ended(_IterableDatasetStopIteration):
    """The message that an iterable data set is exhausted, with its state."""

    state: ProcessState | None = None


class Fetcher:
    """A fetcher like torch's fetcher `plain`, from the place in `resume` on.

    An iterable data set that is not stateful is read again up to this place.

    Attributes:
        start: initial state; {} if nothing is stateful. The data set's part is `before`, its state
            before its iterator was made, because a state is loaded before the iterator is made.
        on_place: called when the place is reached, if batches had to be skipped.
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
        """Return the batch of the samples in `index`."""
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
        """Return the state to continue after the latest batch; None if the data set is not stateful."""
        left_out = ITERATOR if ended else DATASET if self._is_own_iterator else None
        found = save_states({name: owner for name, owner in self._stateful.items() if name != left_out})
        if self._iterator is not None and not ended:
            found |= {BATCHES: self._batches} | ({ENDED: True} if self.plain.ended else {})
        return found or None


def begin_dataset(dataset: object, resume: ProcessState) -> ProcessState:
    """Load the state of a data set from `resume`, before its iterator is made; return its initial state."""
    if not isinstance(dataset, Iterator):
        load_state(dataset, DATASET, resume)
        return save_starts({DATASET: dataset})
    if DATASET in resume and ITERATOR not in resume:  # a state from the end of an epoch
        iter(dataset)  # it may not accept a state before
        load_state(dataset, DATASET, resume)
    return {}
