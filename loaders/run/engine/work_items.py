"""What passes between an engine and its workers: work items, the messages about them, and the rows of a slot."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.loaders.make.batch_planner import Augments
from penstock.loaders.make.engine_contract import Placed
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.ledger import BadSample
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.fields.ragged import join_rows
from penstock.pipelines.sample.dali_graph import CropTask


def batch_row(num_views: int = 1) -> np.dtype[np.void]:
    """Return the type of one row of a slot, next to its pixels: int64 index and label, and how each view is made.

    That is the size (width, height) of the upright image, and of each view its window and place (x, y, width, height),
    turn and flip, as BatchPlan describes them: of one view as they are, of several an array of them. At last the EXIF
    orientation of the file, 1 to 8, applied or not; 0 where it is not applied and nothing moves with the image.
    """
    views = () if num_views == 1 else (num_views,)
    boxes = [(name, "<i4", (*views, 4)) for name in ("window", "place")]
    return np.dtype(
        [
            ("index", "<i8"),
            ("label", "<i8"),
            ("size", "<i4", (2,)),
            *boxes,
            ("turn", "u1", views),
            ("flip", "?", views),
            ("exif", "u1"),
        ]
    )


BATCH_ROW = batch_row()


class WorkItem(NamedTuple):
    """Order one batch, or one of the equal parts that threads share it in.

    Attributes:
        generation: the generation of work that it belongs to; the item is stale once that has moved on.
        cursor: its place in the stream.
        slot: number of the slot to fill.
        part: which of the `parts` to make.
        parts: number of parts of the batch.
    """

    generation: int
    cursor: Cursor
    slot: int
    part: int = 0
    parts: int = 1


class Produced(NamedTuple):
    """Report on a work item, or on all parts of a batch; the batch itself lies in the slot.

    Attributes:
        item: the order.
        error: what stopped it, None if nothing did.
        trace: text of the traceback, for an exception that is not a LoaderError.
        bad: samples that could not be served, in row order.
        produce_s: seconds that the batch took.
        tasks: (row, task) of the rows that another decoder has to write into the slot, in row order.
        read_s: seconds of produce_s that were spent inside the source.
        repaired: samples of the slot in which libjpeg filled in missing data, in row order.
        moved: as HostBatch.moved, of these rows.
        augments: as HostBatch.augments, of the whole batch without its substitutes.
    """

    item: WorkItem
    error: LoaderError | None = None
    trace: str = ""
    bad: tuple[BadSample, ...] = ()
    produce_s: float = 0.0
    tasks: tuple[tuple[int, CropTask], ...] = ()
    read_s: float = 0.0
    repaired: tuple[BadSample, ...] = ()
    moved: tuple[Placed | None, ...] = ()
    augments: Augments = (None,)


def join_parts(parts: list[Produced]) -> Produced:
    """Return the report on a batch from those on all its parts; the error is that of the first part with one."""
    parts = sorted(parts, key=lambda part: part.item.part)
    failed = next((part for part in parts if part.error is not None), parts[0])
    return parts[0]._replace(
        bad=tuple(bad for part in parts for bad in part.bad),
        produce_s=sum(part.produce_s for part in parts),
        error=failed.error,
        trace=failed.trace,
        read_s=sum(part.read_s for part in parts),
        repaired=tuple(entry for part in parts for entry in part.repaired),
        moved=tuple(map(_join_moved, zip(*(part.moved for part in parts), strict=False))),
    )


def _join_moved(parts: tuple[Placed | None, ...]) -> Placed | None:
    """Return what was moved of one view in all parts of a batch."""
    if parts[0] is None:
        return None
    return {name: join_rows([part[name] for part in parts if part is not None]) for name in parts[0]}
