"""The order of the drop-in DataLoader from any place in an epoch on, from our sampler or by replaying the user's."""

from __future__ import annotations

import contextlib
import inspect
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from penstock.loaders.drop_in import random_state
from penstock.loaders.drop_in.random_state import walk_samplers
from penstock.loaders.drop_in.stateful import States, keep_stateful, load_state, save_starts, save_states
from penstock.loaders.drop_in.stream_position import Place
from penstock.loaders.order.permutation import Permutation
from penstock.loaders.order.ranks import distributed_place
from penstock.pipelines.errors import LoaderError

_CHUNK = 4096  # positions computed at once: 32 KiB, for datasets of any size


class ShuffledSampler(RandomSampler):
    """Every sample once, in the order of (seed, epoch), from position `start` on, without stored or drawn numbers.

    Each pass serves the next epoch, unless set_epoch or `at` changes it. `len()` is that of the whole epoch. Raises
    ValueError for an empty dataset, as torch's RandomSampler does.
    """

    def __init__(self, data_source: Sized, seed: int, epoch: int = 0, start: int = 0) -> None:
        super().__init__(data_source)
        self.seed, self.epoch, self.start = seed, epoch, start

    def __iter__(self) -> Iterator[int]:
        length, epoch = len(self.data_source), self.epoch
        self.epoch += 1
        permutation = Permutation.of_epoch(length, self.seed, epoch)
        for first in range(self.start, length, _CHUNK):
            yield from permutation(np.arange(first, min(first + _CHUNK, length), dtype=np.int64)).tolist()

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass serve `epoch`."""
        self.epoch = epoch

    def at(self, epoch: int, start: int) -> ShuffledSampler:
        """Return a sampler of this order at `epoch`, from position `start` on."""
        return ShuffledSampler(self.data_source, self.seed, epoch, start)


def find_counting(loader: object) -> dict[str, Any]:
    """Return the (nested) samplers of a loader with their own epoch number, by name."""
    samplers = [sampler for sampler in walk_samplers(loader) if sampler is not loader and _counts(sampler)]
    return {f"sampler{number}": sampler for number, sampler in enumerate(samplers)}


def _counts(sampler: object) -> bool:
    if isinstance(sampler, ShuffledSampler) or type(getattr(sampler, "epoch", None)) is not int:
        return False  # ours follows the loader
    return callable(getattr(sampler, "set_epoch", None)) or "epoch" in getattr(sampler, "__dict__", {})


def read_epochs(samplers: dict[str, Any]) -> dict[str, int]:
    """Return the epoch of the next pass of each of `samplers`."""
    return {name: sampler.epoch for name, sampler in samplers.items()}


def pass_epochs_on(loader: object, epoch: int, saved: Mapping[str, int | None], *, is_inside: bool) -> None:
    """Set the samplers of a loader to the epochs `saved` in a state, by name; set other samplers to `epoch`.

    Within an epoch, samplers with None in the state are also set to `epoch`. Between epochs they are not changed: a
    program either calls set_epoch for each epoch, or never, and then has the same order in all epochs.
    """
    names = {id(sampler): name for name, sampler in find_counting(loader).items()}
    for sampler in walk_samplers(loader)[1:]:
        name, take = names.get(id(sampler), ""), getattr(sampler, "set_epoch", None)
        own = saved.get(name)
        if callable(take) and (name not in saved or is_inside or own is not None):
            take(epoch if own is None else own)
        elif own is not None:
            sampler.epoch = own


SAMPLER, INNER, ITERATOR = "sampler", "sampler's sampler", "sampler's iterator"
From = Callable[[int, int], Iterable[object]]  # (epoch, batches) -> the rest of that epoch


class ResumableSampler:
    """The `sampler` of a loader, from `place` on; `len()` is that of the whole epoch.

    The state of a stateful sampler is loaded. Any other sampler draws again from the same random numbers, and
    delivered indices are skipped; if the first indices differ from the saved ones, so does the order. `start` finds the
    place without drawing, if the order supports it.
    """

    def __init__(
        self,
        sampler: Any,
        place: Place,
        generators: random_state.Generators,
        start: From | None = None,
        counting: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.sampler, self.place, self.generators, self.start = sampler, place, generators, start
        self.counting = dict(counting)  # samplers with their own epoch number
        self.samplers = {SAMPLER: sampler, INNER: getattr(sampler, "sampler", None)}

    def __iter__(self) -> IndexIterator:
        return IndexIterator(self)

    def __len__(self) -> int:
        return len(self.sampler)

    def save_initial_states(self) -> States:
        """Return the current states of the stateful samplers."""
        return save_starts(self.samplers)

    def may_draw_from(self) -> set[str]:
        """Return the names of the generators that the order may be drawn from."""
        if self.start is not None:
            return set()
        sampler = self.sampler
        while type(sampler) is BatchSampler:
            sampler = sampler.sampler
        if type(sampler) in (SequentialSampler, DistributedSampler):
            return set()
        if type(sampler) in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler):
            return {random_state.TORCH} if sampler.generator is None else set(self.generators)
        return set(random_state.capture(self.generators))


class IndexIterator:
    """An iterator over a ResumableSampler.

    The sampler's iterator is made, and its first index drawn, at the same time as in torch, because both may draw
    random numbers.

    Attributes:
        number: number of the latest index in the epoch.
        begin: states of the generators that the order was drawn from, before it was drawn.
    """

    def __init__(self, order: ResumableSampler) -> None:
        self._order, self._place = order, order.place
        self._ahead = set(self._place.ahead)
        self.number, self.begin = self._place.batches - 1, self._place.begin
        self._iterator: Iterator[object] | None = None
        self._before: random_state.States | None = None
        self._epochs: dict[str, int] = {}  # of the samplers, before the order was drawn
        self._begun, self._peeked = False, False
        self._next_index: object = None
        self._stateful: dict[str, Any] | None = None  # the stateful samplers, and their iterator
        if order.start is not None:
            self._iterator, self._begun = iter(order.start(self._place.epoch, self._place.batches)), True
        elif not self._place.is_resumed:
            self._start_epoch()

    def __iter__(self) -> IndexIterator:
        return self

    def __next__(self) -> object:
        if not self._begun:
            self._begun = True
            if self._iterator is None:
                self._find_place()
            elif self._before is None:  # a generator, which draws now
                self._before = random_state.capture(self._order.generators)
                self._epochs = read_epochs(self._order.counting)
                try:
                    return self._next()
                finally:
                    self._note_drawn()
        return self._next()

    def _next(self) -> object:
        assert self._iterator is not None
        while True:
            index = self._next_index if self._peeked else next(self._iterator)
            self._peeked, self._next_index = False, None
            self.number += 1
            if self.number == 0 and self._order.start is None:
                self._check_first(index)
            if self.number not in self._ahead:
                return index
            self._place.sampler_after[self.number] = self.get_states()

    def look_ahead(self) -> bool:
        """Return whether the sampler is exhausted. Some samplers draw random numbers or reset themselves at the end."""
        assert self._iterator is not None, "a batch was drawn"
        if not self._peeked:
            with contextlib.suppress(StopIteration):
                self._next_index, self._peeked = next(self._iterator), True
        return not self._peeked

    def get_states(self, *, ended: bool = False) -> States:
        """Return the states of the stateful samplers, and of their iterator unless the epoch `ended`."""
        if self._stateful is None:  # looked up once, because this runs for each batch
            self._stateful = keep_stateful({**self._order.samplers, ITERATOR: self._iterator})
        return save_states({n: owner for n, owner in self._stateful.items() if not (ended and n == ITERATOR)})

    def _load_sampler_states(self) -> None:
        """Load the states of the stateful samplers from a loaded state."""
        for name, sampler in self._order.samplers.items():
            load_state(sampler, name, self._place.sampler if self._place.loaded else {})

    def _start_epoch(self) -> None:
        """Make the sampler's iterator at the start of an epoch."""
        order, place = self._order, self._place
        now, place.now = place.now, {}
        random_state.restore(now, order.generators)
        self._load_sampler_states()
        if not place.loaded:
            place.sampler = order.save_initial_states()
        before, self._epochs = random_state.capture(order.generators), read_epochs(order.counting)
        self._iterator = iter(order.sampler)
        if not inspect.isgenerator(self._iterator):
            self._before = before
            self._note_drawn()

    def _note_drawn(self) -> None:
        """Record which generators were used, their states before, and the samplers' epochs before."""
        assert self._before is not None
        names = random_state.find_changed(self._before, random_state.capture(self._order.generators))
        self._place.drawn_from, self._place.epochs = names, self._epochs
        self.begin = self._place.begin = {name: self._before[name] for name in names}

    def _find_place(self) -> None:
        """Make the sampler's iterator, and move it to the place within the epoch."""
        order, place = self._order, self._place
        random_state.restore(place.begin, order.generators)
        self._load_sampler_states()
        self._iterator = iter(order.sampler)
        if place.sampler:
            load_state(self._iterator, ITERATOR, place.sampler)
        elif place.batches:
            self._check_first(next(self._iterator, None))
            next(islice(self._iterator, place.batches - 1, place.batches - 1), None)
        if not place.batches:
            self.look_ahead()  # a generator draws now
        random_state.restore(place.now, order.generators)

    def _check_first(self, index: object) -> None:
        """Record the first indices of an epoch. Raises LoaderError E-STATE if they differ from those of a loaded state.

        Ranks draw different indices, but all may load the state of one rank: many programs save only that of rank 0.
        """
        place, found, rank = self._place, _digest_indices(index), _find_rank(self._order.sampler)
        if place.first is None or place.rank != rank:
            place.first, place.rank = found, rank
        elif place.first != found:
            raise LoaderError(
                "E-STATE",
                "the sampler draws another order than in the saved state: its arguments differ, or it "
                "draws from a generator or a counter that is not part of the state",
                fix="make the sampler with the saved arguments, or give it state_dict() and load_state_dict()",
            )


def _find_rank(sampler: object) -> int:
    """Return the rank of a (nested) sampler, or of this process."""
    ranks = (getattr(holder, "rank", None) for holder in random_state.walk_samplers(sampler))
    own = next((rank for rank in ranks if type(rank) is int and rank >= 0), None)
    if own is not None:
        return own
    try:
        return max(0, distributed_place(certain=False)[0])
    except ValueError:  # an unrelated variable called RANK
        return 0


def _digest_indices(index: object) -> int | None:
    """Return a checksum of a sampler's indices; None for keys that are not integers."""
    try:
        numbers = np.asarray(index)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # lists of unequal lengths, or of the user's objects
        return None
    return zlib.crc32(numbers.astype("<i8").tobytes()) if numbers.dtype.kind in "iu" else None
