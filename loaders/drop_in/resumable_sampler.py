"""ResumableSampler is what torch's iterators draw indices from: the loader's sampler, from a place in its epoch on."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from penstock.loaders.drop_in import random_state
from penstock.loaders.drop_in.place import Place
from penstock.loaders.drop_in.stateful import is_stateful, load_state, save_starts, save_states

SAMPLER, INNER, ITERATOR = "sampler", "sampler's sampler", "sampler's iterator"
From = Callable[[int, int], Iterable[Any]]  # (epoch, batches) -> the rest of that epoch


class ResumableSampler:
    """The `sampler` of a loader, from `place` on; `len()` is that of the whole epoch.

    A sampler that keeps its own place (torchdata's protocol) is sent to it. Any other is drawn from again, from the
    same random numbers, and what was delivered is dropped; `start` finds the place without drawing.
    """

    def __init__(
        self, sampler: Any, place: Place, generators: random_state.Generators, start: From | None = None
    ) -> None:
        self.sampler, self.place, self.generators, self.start = sampler, place, generators, start
        self.keepers = {SAMPLER: sampler, INNER: getattr(sampler, "sampler", None)}

    def __iter__(self) -> IndexIterator:
        return IndexIterator(self)

    def __len__(self) -> int:
        return len(self.sampler)

    def starts(self) -> dict[str, Any]:
        """Return the states in which the samplers are that keep their own place."""
        return save_starts({name: keeper for name, keeper in self.keepers.items() if is_stateful(keeper)})

    def may_draw_from(self) -> set[str]:
        """Name the generators from which the order may be drawn."""
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
    """Iterate over an ResumableSampler.

    A sampler is asked for its iterator, and that for its first index, when torch does: both may draw random numbers.

    Attributes:
        number: of the latest index that was drawn, from the start of the epoch.
        begin: states of the generators that the order was drawn from, before that.
    """

    def __init__(self, order: ResumableSampler) -> None:
        self._order, self._place = order, order.place
        self._ahead = set(self._place.ahead)
        self.number, self.begin = self._place.batches - 1, self._place.begin
        self._iterator: Iterator[Any] | None = None
        self._before: random_state.States | None = None
        self._begun, self._peeked = False, False
        self._next_index: Any = None
        self._keepers: dict[str, Any] | None = None  # of the samplers, those that keep their own place
        if order.start is not None:
            self._iterator, self._begun = iter(order.start(self._place.epoch, self._place.batches)), True
        elif not self._place.is_resumed:
            self._ask()

    def __iter__(self) -> IndexIterator:
        return self

    def __next__(self) -> Any:
        if not self._begun:
            self._begun = True
            if self._iterator is None:
                self._find_place()
            elif self._before is None:  # a generator, which draws now
                self._before = random_state.capture(self._order.generators)
                try:
                    return self._next()
                finally:
                    self._note_drawn()
        return self._next()

    def _next(self) -> Any:
        assert self._iterator is not None
        while True:
            index = self._next_index if self._peeked else next(self._iterator)
            self._peeked, self._next_index = False, None
            self.number += 1
            if self.number not in self._ahead:
                return index

    def look_ahead(self) -> bool:
        """Say whether the sampler is at its end, where some draw random numbers or set themselves back."""
        assert self._iterator is not None, "a batch was drawn"
        if not self._peeked:
            with contextlib.suppress(StopIteration):
                self._next_index, self._peeked = next(self._iterator), True
        return not self._peeked

    def places(self, *, ended: bool = False) -> dict[str, Any]:
        """Return the states of the samplers that keep their own place."""
        if self._keepers is None:  # looked up once: this is asked for each batch
            found = {**self._order.keepers, ITERATOR: self._iterator}
            self._keepers = {name: keeper for name, keeper in found.items() if is_stateful(keeper)}
        return save_states({n: k for n, k in self._keepers.items() if not (ended and n == ITERATOR)})

    def _send_samplers(self) -> None:
        """Send the samplers that keep their own place to the one in the state that was loaded."""
        for name, keeper in self._order.keepers.items():
            load_state(keeper, name, self._place.sampler if self._place.loaded else {})

    def _ask(self) -> None:
        """Ask the sampler for an iterator at the start of an epoch."""
        order, place = self._order, self._place
        now, place.now = place.now, {}
        random_state.restore(now, order.generators)
        self._send_samplers()
        if not place.loaded:
            place.sampler = order.starts()
        before = random_state.capture(order.generators)
        self._iterator = iter(order.sampler)
        if not inspect.isgenerator(self._iterator):
            self._before = before
            self._note_drawn()

    def _note_drawn(self) -> None:
        """Note which generators were drawn from, and their states before that."""
        assert self._before is not None
        names = random_state.changed(self._before, random_state.capture(self._order.generators))
        self._place.drawn_from = names
        self.begin = self._place.begin = {name: self._before[name] for name in names}

    def _find_place(self) -> None:
        """Ask the sampler for an iterator, and bring it to the place inside the epoch."""
        order, place = self._order, self._place
        random_state.restore(place.begin, order.generators)
        self._send_samplers()
        self._iterator = iter(order.sampler)
        if place.sampler:
            load_state(self._iterator, ITERATOR, place.sampler)
        else:
            next(islice(self._iterator, place.batches, place.batches), None)
        if not place.batches:
            self.look_ahead()  # a generator draws now
        random_state.restore(place.now, order.generators)
