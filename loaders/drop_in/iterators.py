"""Iterators of torch's DataLoader that count delivered batches, so that the loader knows its place."""

from __future__ import annotations

import inspect
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind, _SingleProcessDataLoaderIter

from penstock.loaders.drop_in import random_state
from penstock.loaders.drop_in.fetcher import Fetcher, ProcessState, begin_dataset
from penstock.loaders.drop_in.resumable_sampler import IndexIterator
from penstock.loaders.drop_in.stateful import is_stateful
from penstock.loaders.drop_in.stream_position import Mark, Place
from penstock.loaders.run.feed.tensor_feed import TensorFeed, tensors_in
from penstock.loaders.run.metrics.stats import LoaderStats
from penstock.pipelines.errors import LoaderError

if TYPE_CHECKING:
    from penstock.loaders.drop_in.data_loader import DataLoader

Waiting = TypeVar("Waiting", bound="CountingIterator")


class Totals:
    """The statistics of a loader over all iterations.

    Attributes:
        stats: the statistics.
        started_s: when the first batch was requested (perf_counter), 0 before.
    """

    def __init__(self) -> None:
        self.stats, self.started_s = LoaderStats(), 0.0

    def count(self, batch: object, ready: int, asked_s: float) -> None:
        """Count a delivered batch, requested at `asked_s` (perf_counter) when `ready` batches were finished."""
        now, first = time.perf_counter(), next(tensors_in(batch), None)
        self.started_s = self.started_s or asked_s
        images = 0 if first is None else first.size(0) if first.dim() else 1  # nested tensors have no shape
        self.stats = self.stats.with_batch(images, wait_s=now - asked_s, elapsed_s=now - self.started_s, ready=ready)


class CountingIterator(_BaseDataLoaderIter):
    """torch's iterator with a Place, which moves batches to the loader's device.

    In the order of inheritance it follows torch's classes, and replaces their base class.
    """

    _sampler_iter: IndexIterator

    def __init__(self, loader: DataLoader[object]) -> None:
        self._totals: Totals = loader._totals
        self._begin(loader)
        now, has_seed = self._place.now, not self._place.draws_seed
        super().__init__(loader)
        if self._persistent_workers and has_seed and not self._place.is_resumed:
            # Persistent workers would not have drawn a seed between the epochs.
            random_state.restore(now, random_state.find_generators(loader))
        if seeds_workers(loader):
            if self._place.base_seed is not None:
                self._base_seed = self._place.base_seed
            self._place.base_seed = int(self._base_seed)
        self._after_seed()

    def _after_seed(self) -> None:
        """Run after the workers' seed is drawn and before the data set's iterator is made."""

    def _begin(self, loader: DataLoader[object]) -> None:
        self._place: Place = loader._place
        self._place.begun = True
        self._epoch, self._steps = self._place.epoch, loader._count_steps()
        self._marks: deque[Mark] = deque()
        me = weakref.ref(self)  # a cycle would delay the end of the workers until the garbage collector runs
        self._feed: TensorFeed[object, object] | None = None
        if loader.device is not None:
            self._feed = TensorFeed(lambda: alive(me)._take(), lambda: alive(me).ready(), loader.device)

    def _reset(self, loader: DataLoader[object], first_iter: bool = False) -> None:
        if not first_iter:
            self._begin(loader)
            self._index_sampler = loader._index_sampler  # at another place
        super()._reset(loader, first_iter)

    @property
    def _is_iterable(self) -> bool:
        return bool(self._dataset_kind == _DatasetKind.Iterable)

    def _take(self) -> Any:
        return super().__next__()

    def ready(self) -> int:
        """Return the number of batches that are available without waiting."""
        return 0

    def get_end_states(self) -> list[ProcessState | None] | None:
        """Return the states of the processes at the end of an epoch, if they continue with the next."""
        return None

    def place_to_save(self) -> Place:
        """Return this iteration's place, with everything needed to continue from it."""
        return self._place

    def close(self) -> None:
        """End the iteration, and its processes."""
        self._place.left = "the loader was closed"

    def __next__(self) -> Any:
        place, feed = self._place, self._feed
        if place.left is not None:
            raise LoaderError("E-MISUSE", place.left, fix="begin a new iteration")
        asked_s, ready = time.perf_counter(), self.ready() if feed is None else feed.ready()
        try:
            batch = self._take() if feed is None else feed.next()
        except StopIteration:
            if place.epoch == self._epoch:
                self._finish()
            raise
        place.epoch, place.begin = self._epoch, self._sampler_iter.begin
        place.deliver(
            self._marks.popleft(),
            in_order=getattr(self, "_in_order", True),
            iterable=self._is_iterable,
            processes=max(1, self._num_workers),
        )
        if self._steps is not None and place.batches == self._steps:
            self._reach_end()
        self._totals.count(batch, ready, asked_s)
        return batch

    def _reach_end(self) -> None:
        """Mark the epoch as finished if its sampler is exhausted; nothing beyond the epoch was drawn from it."""
        if self._sampler_iter.look_ahead():
            self._finish()

    def _finish(self) -> None:
        self._place.finish(self._epoch, self._sampler_iter.get_states(ended=True), self.get_end_states())


class SingleIterator(_SingleProcessDataLoaderIter, CountingIterator):
    """torch's iterator that fetches in this process.

    An iterable data set that is not stateful may draw its order from the global generators: when its iterator is
    made or, if the iterator is a generator function's, with its first sample.
    """

    def __init__(self, loader: DataLoader[object]) -> None:
        place: Place = loader._place
        self._resume, self._start = (place.resume or [None])[0], {}
        if not place.is_under_way:
            self._start = begin_dataset(loader.dataset, self._resume or {})
        self._may_draw = reads_from_generators(loader)
        if self._may_draw:
            random_state.restore(place.begin or place.now, {})
        self._before = random_state.capture({})
        super().__init__(loader)
        iterator = getattr(self._dataset_fetcher, "dataset_iter", None)
        self._is_lazy = inspect.isgenerator(iterator)
        if place.begin and not self._is_lazy and (is_stateful(iterator) or not place.is_under_way) and self._may_draw:
            random_state.restore(place.now, {})
        self._dataset_fetcher: Fetcher = Fetcher(self._dataset_fetcher, self._resume, self._start)
        if not (place.loaded and place.processes):
            place.processes = [self._dataset_fetcher.start] if self._dataset_fetcher.start else []

    def _after_seed(self) -> None:
        if self._place.is_under_way:  # a state with torch's generator was saved after this point
            begin_dataset(self._dataset, self._resume or {})

    def place_to_save(self) -> Place:
        """Return this iteration's place, with the generators from which the rest is drawn."""
        place = self._place
        if place.is_inside:
            return place
        if self._may_draw:
            begin = random_state.capture({}) if self._is_lazy else self._before
            return replace(place, begin=begin, drawn_from=set(begin), undrawn=self._is_lazy)
        order = self._index_sampler
        states, names = random_state.capture(order.generators), order.may_draw_from()
        return replace(place, begin={name: states[name] for name in names}, drawn_from=names, undrawn=True)

    def _reach_end(self) -> None:
        if self._feed is None:  # torch only calls the sampler for the next batch; it may draw, change or raise
            self._place.at_end = super()._reach_end
        else:
            super()._reach_end()

    def _next_data(self) -> Any:
        if self._may_draw:
            self._may_draw = False
            batch = self._first_data()
        else:
            batch = super()._next_data()  # type: ignore[no-untyped-call]
        draws = self._sampler_iter
        self._marks.append(Mark(draws.number, draws.get_states(), 0, self._dataset_fetcher.state()))
        return batch

    def _first_data(self) -> Any:
        """Return the first batch, and record from which generators it was drawn."""
        place, fetcher = self._place, self._dataset_fetcher
        if place.begin:
            if self._is_lazy:
                random_state.restore(place.begin, {})
            fetcher.on_place = lambda now=place.now: random_state.restore(now, {})
            return super()._next_data()  # type: ignore[no-untyped-call]
        before = random_state.capture({}) if self._is_lazy else self._before
        try:
            return super()._next_data()  # type: ignore[no-untyped-call]
        finally:
            names = random_state.find_changed(before, random_state.capture({}))
            place.drawn_from = names
            self._sampler_iter.begin = {name: before[name] for name in names}

    def get_end_states(self) -> list[ProcessState | None] | None:
        """Return the state of the data set at the end of an epoch."""
        return [self._dataset_fetcher.state(ended=True)] if is_stateful(self._dataset) else None


def reads_from_generators(loader: DataLoader[object]) -> bool:
    """Return whether an iterable data set may draw its order from the global generators of this process."""
    dataset = loader.dataset
    if loader.num_workers or not isinstance(dataset, IterableDataset):
        return False
    return isinstance(dataset, Iterator) or not is_stateful(dataset)


def seeds_workers(loader: DataLoader[object]) -> bool:
    """Return whether workers may draw samples from their generators, so that the place must contain their seed."""
    return bool(loader.num_workers) and (isinstance(loader.dataset, IterableDataset) or is_stateful(loader.dataset))


def alive(reference: Callable[[], Waiting | None]) -> Waiting:
    """Return the iterator of a weak reference; it exists, because it waits."""
    iterator = reference()
    assert iterator is not None, "a waiting iterator is alive"
    return iterator
