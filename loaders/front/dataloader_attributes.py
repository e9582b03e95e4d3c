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
from penstock.loaders.data.sources.sample import Sample, read_sample
from penstock.loaders.order.cursor import NOWHERE, Cursor
from penstock.loaders.order.ledger import CountSources
from penstock.loaders.order.schedule import Schedule
from penstock.pipelines.fields.field_kinds import of_kind
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.targets import map_targets

Batch = TypeVar("Batch")


class Category(NamedTuple):
    """Id and name of a class of boxes.

    Attributes:
        id: the id in the COCO JSON file, or None if joined files have different ids; for other boxes the class number
            from 0.
        name: the name of the class.
    """

    id: int | str | None
    name: str


class ServedData:
    """The data of a loader. It serves batches by their places, and single samples by number, as they are stored.

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

    def __getitem__(self, index: int) -> Sample:
        """Return sample `index` of the source, without crop and augmentation; see read_sample."""
        return read_sample(self._source, index)

    def __getitems__(self, places: list[Cursor]) -> object:
        """Return the batch at the one place in `places`, and advance the loader past it.

        Places of one epoch, in order, are one iteration of the loader. Batches without a sample are skipped.
        Raises StopIteration at the end.
        """
        (place,) = places
        if place.epoch != self._latest.epoch or place <= self._latest:
            self._batches = self._begin(place)
        self._latest = place
        return next(self._batches)


class ServedPlaces:
    """The places of the batches that a loader's next iteration serves; `begin` returns its schedule and start."""

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
    """A sampler that only knows the number of samples per epoch on this rank; the loader chooses the samples.

    It is a DistributedSampler, because programs such as Ray's prepare_data_loader replace any other sampler.
    """

    def __init__(self, schedule: Schedule, epoch: int, next_epoch: int) -> None:
        super().__init__(
            range(schedule.n),  # type: ignore[arg-type]  # torch needs only its length
            num_replicas=schedule.world_size,
            rank=schedule.rank,
            shuffle=schedule.shuffle,
            drop_last=schedule.drop_last,
        )
        self._schedule, self.epoch, self._next_epoch = schedule, epoch, next_epoch

    def __len__(self) -> int:
        return self._schedule.share(self.epoch)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            "a loader's sampler does not yield indices: iterate over the loader; with_index=True serves them"
        )

    def set_epoch(self, epoch: int) -> None:
        """Do nothing, because the loader counts epochs; warn if `epoch` is not the next one that it serves."""
        if self.shuffle and epoch != self._next_epoch:
            warn_user(
                f"sampler.set_epoch({epoch}) has no effect: the loader counts epochs itself and serves epoch "
                f"{self._next_epoch} next; call loader.set_epoch({epoch})"
            )


class DataLoaderAttributes(ABC):
    """The attributes that programs written for torch's DataLoader read, as far as a loader has them.

    accelerate.skip_first_batches makes a DataLoader from `dataset`, `batch_sampler` and `collate_fn`. It serves the
    loader's batches and advances the loader; skipped batches are not read.

    Attributes:
        prefetch_factor: None, because a DataLoader made from these attributes has no workers; the loader has them.
        named_source: the data that the user passed, even if a cache is read instead.
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
        """Counter of the samples of each source of a mix(...); None for other data. A cache cannot count them."""
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
        """The class names of named labels, by the name of the label."""
        return {name: classes for name, classes in self._label_names.items() if name}

    @property
    def _label_names(self) -> dict[str, tuple[str, ...]]:
        """Class names of labels that are not class numbers, by label; "" for the only label."""
        found: dict[str, tuple[bytes, ...]] = getattr(self._source, "label_classes", {})
        return {name: tuple(map(os.fsdecode, classes)) for name, classes in found.items()}

    @property
    def categories(self) -> dict[str, dict[int, Category]]:
        """The categories by class number, for each field of boxes: name and id in the file."""
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

        The path is "" for a row without a sample (-1): padding and, in an evaluation, a bad sample. On every backend
        the paths are those of the data that was passed, so files can be opened by them. For tars and other containers,
        the path is the file's path, a colon, and the sample's name in it.
        """
        places = np.asarray(index.cpu() if hasattr(index, "cpu") else index).ravel().tolist()
        return [os.fsdecode(self.named_source.path(place)) if place >= 0 else "" for place in places]

    @property
    def dataset(self) -> ServedData:
        """The data: length, classes and targets, and batches by their places."""
        return ServedData(self._source, self._iterate_from)

    @property
    def sampler(self) -> ServedShare:
        """A sampler that knows only the number of samples of this rank."""
        return ServedShare(self._current_schedule(certain=False), self.epoch, self._beginning().epoch)

    @property
    def batch_sampler(self) -> ServedPlaces:
        """The places of the batches that the next iteration serves."""
        return ServedPlaces(lambda: (self._current_schedule(certain=True), self._beginning()))

    @staticmethod
    def collate_fn(batch: Batch) -> Batch:
        """Return `batch`: `dataset` already serves batches."""
        return batch
