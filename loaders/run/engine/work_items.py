"""Data between an engine and its workers: work items, messages about them, and the rows of a slot."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.loaders.make.batch_part import join_moved
from penstock.loaders.make.batch_planner import Augments
from penstock.loaders.make.engine_contract import Placed
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.ledger import BadSample
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.user_warnings import Warned
from penstock.pipelines.sample.dali_graph import CropTask


def batch_row(num_views: int = 1) -> np.dtype[np.void]:
    """Return the type of the record for a row of a slot: int64 index and label, and how each view is made.

    It contains the size (width, height) of the upright image, and for each view window and place (x, y, width, height),
    turn and flip, as in BatchPlan: plain for one view, an array for several. The last field is the EXIF
    orientation of the file, 1 to 8, applied or not; 0 if it is not applied and no field moves with the image.
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
    """An order for one batch, or for one of its equal parts for threads.

    Attributes:
        generation: its generation of work; the item is stale in later generations.
        cursor: its place in the stream.
        slot: number of the slot to fill.
        part: number of the part to make, below `parts`.
        parts: number of parts of the batch.
    """

    generation: int
    cursor: Cursor
    slot: int
    part: int = 0
    parts: int = 1


class Produced(NamedTuple):
    """The report on a work item, or on all parts of a batch. The batch itself is in the slot.

    Attributes:
        item: the order.
        error: the error that stopped it, or None.
        trace: text of the traceback, for an exception that is not a LoaderError.
        bad: samples that could not be served, in row order.
        produce_s: seconds that the batch took.
        tasks: (row, task) of the rows that another decoder must write into the slot, in row order.
        read_s: seconds of produce_s that were spent inside the source.
        repaired: samples of the slot in which libjpeg filled in missing data, in row order.
        moved: as HostBatch.moved, for these rows.
        augments: as HostBatch.augments, for the whole batch without its substitutes.
        warned: as HostBatch.warned.
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
    warned: Warned = ()


def join_parts(parts: list[Produced]) -> Produced:
    """Return the report on a batch from the reports on its parts; the error is that of the first failed part."""
    parts = sorted(parts, key=lambda part: part.item.part)
    failed = next((part for part in parts if part.error is not None), parts[0])
    return parts[0]._replace(
        bad=tuple(bad for part in parts for bad in part.bad),
        produce_s=sum(part.produce_s for part in parts),
        error=failed.error,
        trace=failed.trace,
        read_s=sum(part.read_s for part in parts),
        repaired=tuple(entry for part in parts for entry in part.repaired),
        moved=tuple(map(join_moved, zip(*(part.moved for part in parts), strict=False))),
        warned=tuple(each for part in parts for each in part.warned),
    )
