"""The attributes of torch's DataLoader that other programs read from a loader."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch.utils.data import DistributedSampler

from penstock.loaders.data.sources.contract import Source, field_kinds_of, has_targets
from penstock.loaders.order.cursor import NOWHERE, Cursor
from penstock.loaders.order.ledger import CountSources
from penstock.loaders.order.schedule import Schedule
from penstock.pipelines.fields.field_kinds import of_kind
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.targets import map_targets

Batch = TypeVar("Batch")


class Category(NamedTuple):
    """Hold the id and the name of a class of boxes.

    Attributes:
        id: in the JSON file of COCO, None for joined files whose ids differ; of other boxes the class number from 0.
        name: what it is called.
    """

    id: int | str | None
    name: str


class ServedData:
    """Describe the data of a loader, and serve batches by their places; it has no single samples.

    Args:
        begin: starts an iteration of the loader at a place.

    Attributes:
        classes: class names, by class number.
    """

    def __init__(self, source: Source, begin: Callable[[Cursor], Iterator[object]]) -> None:
        self.classes = tuple(map(os.fsdecode, source.classes))
        self._source, self._begin = source, begin
        self._batches: Iterator[object] = iter(())
        self._latest = NOWHERE

    def __len__(self) -> int:
        return len(self._source)

    @property
    def targets(self) -> Any:
        """The label of each sample, in the order of the source: a list, or a dict of lists by name."""
        everything = np.arange(len(self))
        of = self._source.targets(everything) if has_targets(self._source) else self._source.labels(everything)
        return map_targets(lambda part: part.tolist(), of)

    def __getitems__(self, places: list[Cursor]) -> object:
        """Return the batch at the one place in `places`, and leave the loader behind it.

        Places of one epoch, in their order, form one iteration of the loader. It skips batches without a sample and
        raises StopIteration at the end.
        """
        (place,) = places
        if place.epoch != self._latest.epoch or place <= self._latest:
            self._batches = self._begin(place)
        self._latest = place
        return next(self._batches)


class ServedPlaces:
    """List the places of the batches that a loader's next iteration serves: `begin` returns its schedule and start."""

    def __init__(self, begin: Callable[[], tuple[Schedule, Cursor]]) -> None:
        self._begin = begin

    def __len__(self) -> int:
        schedule, start = self._begin()
        return schedule.served_steps(start.position, start.epoch)

    def __iter__(self) -> Iterator[list[Cursor]]:
        schedule, place = self._begin()
        for _ in range(schedule.steps(place.position, place.epoch)):
            yield [place]
            place = schedule.after(place)


class ServedShare(DistributedSampler[object]):
    """Stand for the samples of an epoch on this rank, which the loader itself chooses; it has their number.

    It is a DistributedSampler so that programs that give one to each loader without it, such as Ray's
    prepare_data_loader, leave the loader as it is.
    """

    def __init__(self, schedule: Schedule, epoch: int, next_epoch: int) -> None:
        super().__init__(
            range(schedule.n),  # type: ignore[arg-type]  # torch asks for its length only
            num_replicas=schedule.world_size,
            rank=schedule.rank,
            shuffle=schedule.shuffle,
            drop_last=schedule.drop_last,
        )
        self._schedule, self.epoch, self._next_epoch = schedule, epoch, next_epoch

    def __len__(self) -> int:
        return self._schedule.share(self.epoch)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a loader has no sampler with indices: iterate over the loader, with_index=True serves them")

    def set_epoch(self, epoch: int) -> None:
        """Do nothing, as the loader counts epochs; warn where `epoch` is not the one that it serves next."""
        if self.shuffle and epoch != self._next_epoch:
            warn_user(
                f"sampler.set_epoch({epoch}) has no effect, as the loader counts epochs itself and serves "
                f"{self._next_epoch} next: call loader.set_epoch({epoch})"
            )


class DataLoaderAttributes(ABC):
    """Offer the attributes that programs written for torch's DataLoader read, as far as a loader has them.

    accelerate.skip_first_batches makes a DataLoader of `dataset`, `batch_sampler` and `collate_fn`. It serves the
    loader's batches and advances the loader; skipped batches are not read.

    Attributes:
        prefetch_factor: None, because a DataLoader made of this one has no workers; the loader has them.
        named_source: the data as the user passed it, whatever cache stands for it.
    """

    prefetch_factor = None
    named_source: Source
    _source: Source
    _schedule: Schedule
    _cursor: Cursor  # of the next batch

    @property
    @abstractmethod
    def epoch(self) -> int:
        """The epoch of the next batch."""

    @abstractmethod
    def _current_schedule(self, *, certain: bool) -> Schedule: ...

    @abstractmethod
    def _beginning(self) -> Cursor:
        """Return where the next iteration begins."""

    @abstractmethod
    def _iterate_from(self, cursor: Cursor) -> Iterator[object]: ...

    @cached_property
    def _count_sources(self) -> CountSources | None:
        """What counts the samples of each source of a mix(...), which a cache in its place cannot; None without one."""
        mixture = getattr(self.named_source, "mixture", None)
        return None if mixture is None else mixture.count_sources

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._source.describe()}; batch_size={self.batch_size}>"

    @property
    def batch_size(self) -> int:
        """The samples of a full batch on each rank."""
        return self._schedule.batch_size_at(self._cursor)

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, by class number."""
        return self.dataset.classes

    @property
    def label_classes(self) -> dict[str, tuple[str, ...]]:
        """The class names of labels that have names themselves, by these."""
        found: dict[str, tuple[bytes, ...]] = getattr(self._source, "label_classes", {})
        return {name: tuple(map(os.fsdecode, classes)) for name, classes in found.items() if name}

    @property
    def categories(self) -> dict[str, dict[int, Category]]:
        """Of each field of boxes, what its class numbers are called and what ids they have in their file, by number."""
        kinds = field_kinds_of(self._source)
        return {
            name: {
                kind.first_class + number: Category(of, os.fsdecode(called))
                for number, (of, called) in enumerate(zip(kind.category_ids or count(), kind.classes, strict=False))
            }
            for name, kind in of_kind(kinds, "boxes").items()
        }

    def paths(self, index: Any) -> list[str]:
        """Return the path of each sample in a tensor, array or list of indices, as with_index=True serves them.

        It is "" where a row has no sample (-1): padding and, in an evaluation, the row of a bad sample. Paths are those
        of the data that was passed, on every backend: files can be opened by them; of tars and other containers it is
        the file's path, a colon, and the sample's name there.
        """
        places = np.asarray(index.cpu() if hasattr(index, "cpu") else index).ravel().tolist()
        return [os.fsdecode(self.named_source.path(place)) if place >= 0 else "" for place in places]

    @property
    def dataset(self) -> ServedData:
        """The data: length, classes and targets, and whole batches by their places."""
        return ServedData(self._source, self._iterate_from)

    @property
    def sampler(self) -> ServedShare:
        """The samples of this rank; only their number."""
        return ServedShare(self._current_schedule(certain=False), self.epoch, self._beginning().epoch)

    @property
    def batch_sampler(self) -> ServedPlaces:
        """The places of the batches that the next iteration serves."""
        return ServedPlaces(lambda: (self._current_schedule(certain=True), self._beginning()))

    @staticmethod
    def collate_fn(batch: Batch) -> Batch:
        """Return `batch`: `dataset` already serves batches."""
        return batch
