"""MovedRows holds what moves with the images of a batch, first where their crops put it, then where a transform did."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.loaders.data.files.contract import FieldSource
from penstock.loaders.data.files.source_faults import naming_method
from penstock.loaders.make.compose_fields import RowFields
from penstock.loaders.make.layout import Slot
from penstock.loaders.make.served_fields import place_fields
from penstock.pipelines.fields.placement import STILL
from penstock.pipelines.fields.ragged import Ragged, take_rows
from penstock.pipelines.plan.crops import BatchPlan


class MovedRows:
    """Hold the masks, boxes and keypoints of the rows of one view.

    Args:
        crops: of the batch, with its masks.
        slot: where the masks go that a transform has moved.
    """

    def __init__(self, source: FieldSource, crops: Slot, slot: Slot, view: int) -> None:
        rows, kinds = crops.rows, source.field_kinds
        served = np.flatnonzero(rows["index"] >= 0)
        columns = [rows[name] for name in ("window", "flip", "place", "turn")]
        if crops.layout.num_views > 1:
            columns = [column[:, view] for column in columns]
        with naming_method("fields()"):
            # A source of the user's may not take an empty list of samples.
            samples = rows["index"][served].astype(np.int64) if len(served) else np.zeros(1, np.int64)
            values = {name: take_rows(value, np.arange(len(served))) for name, value in source.fields(samples).items()}
            placing = BatchPlan(*columns), crops.layout.crop_sizes[view], STILL
            self._placed = place_fields(kinds, values, served, rows["size"], placing)
        self._masks = {name: views[view] for name, views in crops.extras.items()}
        self._moved_masks = {name: views[view] for name, views in slot.extras.items()}
        self._moved: list[RowFields | None] = [None] * len(rows)

    def of_row(self, row: int) -> RowFields:
        """Return what the crop of a row shows."""
        boxes, points = {}, {}
        for name, value in self._placed.items():
            if isinstance(value, Ragged):
                boxes[name] = take_rows(value, np.array([row])).parts
            else:
                points[name] = value[row]
        return RowFields({name: masks[row] for name, masks in self._masks.items()}, boxes, points)

    def take(self, row: int, moved: RowFields) -> None:
        """Take what a transform has made of a row."""
        for name, mask in moved.masks.items():
            self._moved_masks[name][row] = mask
        self._moved[row] = moved

    def join(self) -> dict[str, Any]:
        """Return the boxes and keypoints of all rows as place_fields does; rows without a sample have none."""
        joined: dict[str, Any] = {}
        for name, value in self._placed.items():
            if isinstance(value, Ragged):
                of_rows = [None if row is None else row.boxes[name] for row in self._moved]
                lengths = np.array([0 if parts is None else len(parts[0]) for parts in of_rows], np.int64)
                none = tuple(part[:0] for part in value.parts)
                parts = [none, *(parts for parts in of_rows if parts is not None)]
                joined[name] = Ragged(lengths, tuple(map(np.concatenate, zip(*parts, strict=True))))
            else:
                joined[name] = np.zeros_like(value)
                for number, row in enumerate(self._moved):
                    if row is not None:
                        joined[name][number] = row.points[name]
        return joined
