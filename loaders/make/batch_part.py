"""BatchPart: the work of one worker, either a batch or the rows of it that one thread makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from penstock.loaders.make.batch_planner import Content
from penstock.loaders.make.engine_contract import Placed
from penstock.loaders.make.layout import Slot
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.ledger import BadSample
from penstock.pipelines.fields.ragged import join_rows
from penstock.pipelines.native.rows import Progress
from penstock.pipelines.sample.dali_graph import CropTask


@dataclass
class BatchPart:
    """The rows that are being made, and their results. The steps of Producer modify it.

    Rows are numbered from the first row of this part.

    Attributes:
        cursor: place of the batch in the stream.
        content: the content of the whole batch.
        slot: memory for the finished rows.
        crops: memory for the images: `slot`, or memory from which transforms make the images in the slot.
        working_on: called with each sample that Python is about to read or decode (a heartbeat; it may raise Aborted).
        progress: the native library's heartbeat.
        left: rows that Python must make, int64 [n].
        bad: samples that could not be served, by row.
        repaired: samples in which libjpeg filled in missing data, by row.
        moved: as HostBatch.moved, for these rows.
        read_s: seconds spent inside the source.
        lay_out: for whole images, returns memory for the crops of a row whose image has a (height, width).
        tasks: (row, task) of the rows that another decoder must write into the slot, in row order.
    """

    cursor: Cursor
    content: Content
    slot: Slot
    crops: Slot
    working_on: Callable[[int], None]
    progress: Progress | None = None
    left: npt.NDArray[np.intp] = field(init=False)
    bad: dict[int, BadSample] = field(default_factory=dict)
    repaired: dict[int, BadSample] = field(default_factory=dict)
    moved: tuple[Placed | None, ...] = ()
    read_s: float = 0.0
    tasks: tuple[tuple[int, CropTask], ...] = ()
    lay_out: Callable[[tuple[int, int]], Slot] | None = None

    def __post_init__(self) -> None:
        self.left = np.arange(len(self.index)) if self.content.is_full else np.flatnonzero(self.index >= 0)

    @cached_property
    def index(self) -> npt.NDArray[np.int64]:
        """The sample of each row in the order, int64 [rows]; -1 for padding."""
        return self.content.samples[self.slot.first : self.slot.end]

    @cached_property
    def keys(self) -> npt.NDArray[np.int64] | None:
        """Keys of the random draws of the rows, int64 [rows]; None if the samples are the keys."""
        keys = self.content.keys
        return None if keys is None else keys[self.slot.first : self.slot.end]

    def in_batch(self, entries: Mapping[int, BadSample]) -> tuple[BadSample, ...]:
        """Return the entries in row order, with their rows in the whole batch."""
        return tuple(entries[row]._replace(row=self.slot.first + row) for row in sorted(entries))


def join_rows_of(slot: Slot, parts: Sequence[BatchPart]) -> BatchPart:
    """Return the part of the rows of `slot` from `parts`, one for each row."""
    first = parts[0]
    return replace(
        first,
        slot=slot,
        crops=slot,
        bad={row: part.bad[0]._replace(row=row) for row, part in enumerate(parts) if part.bad},
        repaired={row: part.repaired[0]._replace(row=row) for row, part in enumerate(parts) if part.repaired},
        moved=tuple(map(join_moved, zip(*(part.moved for part in parts), strict=True))),
        read_s=sum(part.read_s for part in parts),
    )


def join_moved(parts: tuple[Placed | None, ...]) -> Placed | None:
    """Return the moved fields of one view for the rows of all parts."""
    if parts[0] is None:
        return None
    return {name: join_rows([part[name] for part in parts if part is not None]) for name in parts[0]}
