"""What passes between an engine and its workers: work items, the messages about them, and the rows of a slot."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from penstock.loaders.stream.engine_contract import BadSample, Cursor
from penstock.pipelines.errors import LoaderError

# One row of a slot, next to its pixels: int64 index and label, crop window (x, y, width, height), mirror flag.
BATCH_ROW = np.dtype([("index", "<i8"), ("label", "<i8"), ("window", "<i4", (4,)), ("flip", "?")])


class WorkItem(NamedTuple):
    """Order one batch.

    Attributes:
        generation: the generation of work that it belongs to; the item is stale once that has moved on.
        cursor: its place in the stream.
        slot: number of the slot to fill.
    """

    generation: int
    cursor: Cursor
    slot: int


class Produced(NamedTuple):
    """Report on a work item; the batch itself lies in the slot.

    Attributes:
        item: the order.
        bad: samples that could not be served, in row order.
        produce_s: seconds that the batch took.
        done: whether the slot is filled.
        error: what stopped it, None if nothing did.
        trace: text of the traceback, for an exception that is not a LoaderError.
        tasks: (row, task) of the rows that another decoder has to write into the slot, in row order.
        read_s: seconds of produce_s that were spent inside the source.
        repaired: samples of the slot in which libjpeg filled in missing data, in row order.
    """

    item: WorkItem
    bad: tuple[BadSample, ...]
    produce_s: float
    done: bool
    error: LoaderError | None
    trace: str = ""
    tasks: tuple[tuple[int, Any], ...] = ()
    read_s: float = 0.0
    repaired: tuple[BadSample, ...] = ()
