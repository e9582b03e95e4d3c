"""Drop-in replacement of torch's DataLoader: watched and resumable."""

from __future__ import annotations

import functools
import inspect
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, Sampler, SequentialSampler
from torch.utils.data import DataLoader as TorchDataLoader

from penstock.loaders.drop_in.batch_iterator import BatchIterator, get_start_method
from penstock.loaders.drop_in.fetcher import DATASET
from penstock.loaders.drop_in.iterators import (
    CountingIterator,
    SingleIterator,
    Totals,
    reads_from_generators,
    seeds_workers,
)
from penstock.loaders.drop_in.random_state import TORCH, capture, find_generators, peek_base_seed
from penstock.loaders.drop_in.recommended_settings import AUTO, recommend_settings
from penstock.loaders.drop_in.resumable_sampler import (
    ResumableSampler,
    ShuffledSampler,
    find_counting,
    pass_epochs_on,
    read_epochs,
)
from penstock.loaders.drop_in.stateful import is_stateful, save_starts
from penstock.loaders.drop_in.stream_position import Place
from penstock.loaders.drop_in.worker_start import refuse_without_main_guard
from penstock.loaders.order.order import SAMPLER
from penstock.loaders.order.state import NUM_EPOCHS, DataLoaderState
from penstock.loaders.run.feed.copies import checked_device
from penstock.loaders.run.metrics.stats import LoaderStats
from penstock.loaders.run.workers.needs import Needs, ensure
from penstock.loaders.run.workers.worker_progress import DEFAULT_WATCHDOG_S, check_watchdog
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import checked_bool, checked_int, shown
from penstock.pipelines.messages.foreign_names import refuse_unknown
from penstock.pipelines.messages.user_warnings import warn_user

T_co = TypeVar("T_co", covariant=True)
Given = ParamSpec("Given")
_RANDOM, _SEQUENTIAL, _ITERABLE = "random", "sequential", "iterable"


def _names_unknown(init: Callable[Given, None]) -> Callable[Given, None]:
    """Return an __init__ that suggests a replacement for an unknown argument."""
    known = tuple(inspect.signature(init).parameters)[1:]
    of_ranks = "pass sampler=torch.utils.data.DistributedSampler(dataset)"

    @functools.wraps(init)
    def checked(*arguments: Given.args, **given: Given.kwargs) -> None:
        for name in given.keys() - set(known):
            if name in ("rank", "local_rank", "world_size", "num_replicas", "num_shards", "shard_id"):
                raise TypeError(f"DataLoader has no setting {name}: {of_ranks}")
            refuse_unknown("DataLoader", [name], known)
        init(*arguments, **given)

    return checked


class DataLoader(TorchDataLoader[T_co]):
    """Drop-in replacement for torch.utils.data.DataLoader that reports the cause of every stop and can resume.

    Samples and their timing are the same as in torch. torch's arguments keep their names, defaults and meaning.
    Subclasses, samplers and iterators work as in torch.

    Args:
        num_workers: "auto" means tuned=True.
        device: destination of the tensors of each batch, in nested tuples, lists and mappings. On CUDA they are sent
            one batch ahead of the consumer, with workers from memory that a thread page-locks. None leaves them as in
            torch. Raises LoaderError E-DEPENDENCY if torch cannot use it.
        seed: seed of the order with shuffle=True, 0 to 2**64 - 1. The order depends only on the seed and the epoch
            number; no generator is used. None draws the order from torch's generator, as torch does. Warns if it has no
            effect.
        watchdog_s: seconds without progress of the workers before E-TIMEOUT. None waits like torch, and warns after
            300 s.
        tuned: choose num_workers, pin_memory and prefetch_factor if they have torch's defaults. Warns about the
            differences, and raises LoaderError E-MISUSE if other samples would be served.
        snapshot_every_n_steps: accepted for torchdata's StatefulDataLoader, without effect: states are always exact.

    An iteration serves the rest of the current epoch. The next one starts the next epoch, even if this one was
    left early. `state_dict()` counts delivered batches only. It contains the states of the generators that the order
    was drawn from, and of stateful samplers, data sets and iterators (torchdata's state_dict() and load_state_dict()).
    In a resumed epoch, other samplers draw again, other iterable data sets are read again, and delivered batches are
    skipped. A state from before the first batch contains the start of the epoch. Random transforms of a map-style data
    set are not part of the state, and do not repeat after a resume with workers. Exceptions of the data set are raised
    as in torch. Raises LoaderError E-WORKER, E-OOM, E-TIMEOUT, E-FD, E-SHM for lost workers; a new iteration starts
    new workers.
    """

    @_names_unknown
    def __init__(  # noqa: PLR0913  it accepts every argument of torch's DataLoader
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | str = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        device: str | torch.device | None = None,
        seed: int | None = None,
        watchdog_s: float | None = None,
        tuned: bool = False,
        snapshot_every_n_steps: int | None = 1,
    ) -> None:
        _refuse_source(dataset)
        check_watchdog(DEFAULT_WATCHDOG_S if watchdog_s is None else watchdog_s)
        self.device = None if device is None else checked_device(device)
        self.seed, self.watchdog_s, self.snapshot_every_n_steps = _check_seed(seed), watchdog_s, snapshot_every_n_steps
        self.tuned = checked_bool("tuned", tuned) or num_workers == AUTO
        if self.tuned:
            num_workers, pin_memory, prefetch_factor = recommend_settings(
                dataset, num_workers, pin_memory, prefetch_factor, self.device
            )
        order = _name_order(dataset, shuffle, sampler, batch_sampler, generator, self.seed)
        if order == SAMPLER:
            sampler, shuffle = ShuffledSampler(dataset, self.seed or 0), None  # type: ignore[arg-type]  # it has a len()
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,  # type: ignore[arg-type]  # only "auto" is not a number
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            **({} if in_order else {"in_order": False}),  # torch has it since 2.6
        )
        self._order, self._made_sampler = order, super()._index_sampler
        self._place, self._totals, self._closed = Place(), Totals(), False
        self._alive: weakref.WeakSet[CountingIterator] = weakref.WeakSet()

    @property
    def _index_sampler(self) -> ResumableSampler:
        """The sampler for torch's iterators, from the current place on; its `len()` is that of the whole epoch."""
        sampler = super()._index_sampler
        start = None
        if self._order in (SAMPLER, _SEQUENTIAL, _ITERABLE) and sampler is self._made_sampler:  # no subclass changed it
            start = functools.partial(_skip_batches, self.sampler, sampler, self.batch_size, self.drop_last)
        return ResumableSampler(sampler, self._place, find_generators(self), start, find_counting(self))

    def _get_iterator(self) -> CountingIterator:
        self._place = self._place.next_iteration()  # some subclasses call this instead of __iter__
        if self.num_workers == 0:
            iterator: CountingIterator = SingleIterator(self)
        else:
            refuse_without_main_guard()
            self.check_worker_number_rationality()
            workers = self.num_workers  # the size of the batches is unknown until they arrive
            ensure(Needs(0, 0, workers, workers * 6 + 16, get_start_method(self)))
            iterator = BatchIterator(self)
        self._alive.add(iterator)
        return iterator

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names its own class
        """Return an iterator over the rest of the epoch. Raises LoaderError E-MISUSE after close()."""
        if self._closed:
            raise LoaderError("E-MISUSE", "the loader is closed", fix="make a new loader")
        if isinstance(self._iterator, BatchIterator) and self._iterator.spent:
            self._iterator = None
        self._place = self._place.next_iteration()
        return super().__iter__()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy, or for another process, which starts its own workers."""
        self._place.settle()
        return {**self.__dict__, "_alive": None, "_iterator": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _alive=weakref.WeakSet())

    def _count_steps(self) -> int | None:
        """Return the number of batches of a whole epoch; None if it is unknown."""
        if isinstance(self.dataset, IterableDataset):  # len() would make torch warn later
            return None
        try:
            return len(self)
        except Exception:  # torch does not call len()
            return None

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration start `epoch`; keep the place if it is inside that epoch (after load_state_dict).

        The epoch is passed on to a sampler that has its own set_epoch (DistributedSampler). Raises ValueError unless it
        is from 0 to 2**32 - 1.
        """
        epoch = checked_int("epoch", epoch, 0, NUM_EPOCHS - 1)
        if epoch != self.epoch or not self._place.fresh:
            self._go_to(Place(epoch))
        self._pass_epoch_on()

    def _go_to(self, place: Place) -> None:
        self._place.left = "the loader was moved to another place"
        self._place = place

    def _pass_epoch_on(self, saved: Mapping[str, int | None] = MappingProxyType({})) -> None:
        """Pass the loader's epoch, or the samplers' own epochs from a state, to samplers that accept one."""
        pass_epochs_on(self, self._place.epoch, saved, is_inside=self._place.is_under_way)

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._place.settle().epoch

    def _identity(self) -> DataLoaderState:
        dataset: Any = self.dataset
        has_length = hasattr(dataset, "__len__") and not isinstance(dataset, IterableDataset)
        return DataLoaderState(
            order=self._order,
            seed=self.seed,
            samples=len(dataset) if has_length else None,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the stream; it counts delivered batches, never prefetched ones.

        It is JSON-serialisable if the states of stateful samplers and data sets are.
        """
        place = self._place.settle()
        iterator = next((one for one in self._alive if one._place is place), None) if place.begun else None
        if iterator is not None:
            place = iterator.place_to_save()
        elif place.fresh and not place.loaded:
            place = self._next_start()
        details = place.save(find_generators(self))
        epochs = place.save_epochs(read_epochs(find_counting(self)))
        details |= {"epochs": epochs} if epochs else {}
        return self._identity().save(place.epoch, place.batches) | ({"details": details} if details else {})

    def _next_start(self) -> Place:
        """Return the place where the next iteration begins, with the generators from which its order will be drawn."""
        order, place, dataset = self._index_sampler, self._place.next_iteration(), self.dataset
        if order.start is None:
            place.sampler = order.save_initial_states()
        place.drawn_from = place.drawn_from or order.may_draw_from()
        if reads_from_generators(self):
            place.drawn_from = place.drawn_from or set(capture({}))
        if self.num_workers == 0 and is_stateful(dataset):  # a worker's state is unknown before the worker runs
            place.processes = [save_starts({DATASET: dataset}) or None]
        place.draws_seed = self.persistent_workers and self._iterator is None
        own = next(iter(order.generators), "") if self.generator is not None else TORCH
        if seeds_workers(self) and own not in place.drawn_from:
            place.base_seed = peek_base_seed(self.generator)
        return place

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was saved. Raises LoaderError E-STATE for a state of another stream."""
        plain = {k: v for k, v in state.items() if k != "details"} if isinstance(state, dict) else state
        identity = self._identity()
        if isinstance(plain, dict) and "order" in plain and "seed" in plain:
            if (self._order, plain["order"]) == (_RANDOM, SAMPLER):  # from a loader that had a seed by default
                identity = replace(identity, order=SAMPLER, seed=_check_seed(plain["seed"]))
            elif self._order != SAMPLER:  # the seed does not affect the order
                plain["seed"] = self.seed
        epoch, batches = identity.restore(plain)
        details = state.get("details", {})
        is_iterable = isinstance(self.dataset, IterableDataset)
        place = Place.load(epoch, batches, details, self.num_workers, is_iterable=is_iterable)
        if identity.order != self._order:
            self._use_seed(identity.seed or 0)
        self._go_to(place)
        self._iterator = None  # its workers cannot be moved to another place of a data set
        self._pass_epoch_on(details.get("epochs", {}))

    def _use_seed(self, seed: int) -> None:
        dataset: Any = self.dataset
        sampler = ShuffledSampler(dataset, seed)
        size, last = self.batch_size, self.drop_last
        batch_sampler = None if size is None else BatchSampler(sampler, size, last)
        self.__dict__.update(sampler=sampler, batch_sampler=batch_sampler)  # torch's __setattr__ refuses this
        self._order, self.seed, self._made_sampler = SAMPLER, seed, super()._index_sampler

    def stats(self) -> LoaderStats:
        """Return the statistics so far; images counts the rows of the first tensor, produce_s is unknown and 0."""
        return self._totals.stats

    def close(self) -> None:
        """End the worker processes within seconds; idempotent."""
        self._closed, self._iterator = True, None
        for iterator in list(self._alive):
            iterator.close()

    def __enter__(self) -> DataLoader[T_co]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refuse_source(dataset: object) -> None:
    is_own = not hasattr(dataset, "__getitem__") or type(dataset).__module__.startswith("penstock.")
    is_source = is_own and hasattr(dataset, "fingerprint") and hasattr(dataset, "read")
    if isinstance(dataset, (str, os.PathLike)) or is_source:
        raise ValueError(
            f"dataset must be a Dataset of torch, got {shown(dataset)}: create_loader accepts folders, sources"
        )


def _check_seed(seed: object) -> int | None:
    return None if seed is None else checked_int("seed", seed, 0, (1 << 64) - 1)


def _name_order(
    dataset: object, shuffle: object, sampler: object, batch_sampler: object, generator: object, seed: int | None
) -> str:
    """Return the name of the order, for states. Warns if a seed has no effect on it."""
    theirs = isinstance(dataset, IterableDataset) or not (sampler is batch_sampler is generator is None)
    if seed is not None and shuffle and not theirs:
        return SAMPLER
    if seed is not None:
        what = "shuffle=True without your own sampler, batch_sampler or generator"
        warn_user(f"seed={seed} has no effect: it only orders {what}")
    if isinstance(dataset, IterableDataset):
        return _ITERABLE
    if batch_sampler is not None or sampler is not None:
        return "sampler" if batch_sampler is None else "batch_sampler"
    if not shuffle:
        return _SEQUENTIAL
    if generator is not None:
        return "generator"
    return _RANDOM


def _skip_batches(
    sampler: Any, index_sampler: Any, batch_size: int | None, drop_last: bool, epoch: int, batches: int
) -> Iterable[object]:
    """Return the rest of an epoch of one of our orders, without drawing the beginning."""
    start = batches * (batch_size or 1)
    if isinstance(sampler, ShuffledSampler):
        rest: Any = sampler.at(epoch, start)
    elif isinstance(sampler, SequentialSampler):
        rest = range(start, len(sampler))
    else:  # for an iterable data set, endless
        return index_sampler  # type: ignore[no-any-return]
    return rest if batch_size is None else BatchSampler(rest, batch_size, drop_last)
