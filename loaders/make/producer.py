"""Producer: makes one batch in a slot. The native library fills the rows that it supports, Python the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import is_fetching
from penstock.loaders.data.sources.source_faults import checked_class_numbers, naming_method
from penstock.loaders.make.batch_part import BatchPart, join_rows_of
from penstock.loaders.make.batch_planner import BatchPlanner, Content
from penstock.loaders.make.layout import Slot
from penstock.loaders.make.native_rows import NativeRows, native_rows
from penstock.loaders.make.python_rows import PythonRows, pad_rows
from penstock.loaders.make.transform_step import TransformStep
from penstock.loaders.order.cursor import Cursor
from penstock.pipelines.native.rows import Progress
from penstock.pipelines.sample.patches import cut_rows


class Aborted(Exception):
    """The batch is no longer wanted."""


class Producer:
    """Fills slots, in one thread. The result depends only on (planner, cursor).

    A BatchPart goes through these steps, in a worker:

        planner.content(cursor) -> samples, their plan, layout of the slot
          fill_natively   most images            native_rows.py, unless the data or the decoder need Python
          fill_rest       the other images       python_rows.py: read, plan, decode, resize
          fill_fields     pictures; checks boxes worker_fields.py
                          tokens of texts        served_text.py
          replace_bad     substitutes, padding   python_rows.py, all of the above for one row
          transform       the user's function    transform_step.py, from crops in its own memory to the slot
          cut_patches     sequences of patches
          label           class numbers
        -> the slot, bad and repaired samples

    The consumer adds the rest of a batch, with finishing_steps.
    """

    def __init__(self, planner: BatchPlanner, python: PythonRows | None = None) -> None:
        self._planner = planner
        self._is_whole = any(planner.whole_views)
        self._native = None if self._is_whole else native_rows(planner.source, planner.pipeline, planner.decoder)
        self._python = python or PythonRows(planner)
        self._transform = TransformStep(planner) if planner.transforms else None
        self._fetches = is_fetching(planner.source)  # stored, because the call takes 50 us

    def produce(
        self,
        cursor: Cursor,
        memory: npt.NDArray[np.uint8],
        rows: npt.NDArray[np.void],
        working_on: Callable[[int], None],
        progress: Progress | None = None,
        part: tuple[int, int] = (0, 1),
    ) -> BatchPart:
        """Write the batch at `cursor` to `memory`, uint8 [bytes] of the layout, and to `rows` (batch_row) [batch].

        working_on, progress: as in BatchPart, which is returned. part: (number, count), write only this one of `count`
        equal parts of the rows. Raises LoaderError for errors that are not specific to a sample, Aborted if the batch
        is no longer wanted.
        """
        if self._fetches:
            self._planner.announce(cursor)
        content = self._planner.content(cursor)
        first, end = (len(content.samples) * number // part[1] for number in (part[0], part[0] + 1))
        slot = Slot(content.layout, memory, rows[: len(content.samples)], first, end)
        if self._is_whole:  # one image at a time, because whole images need much memory
            slots = [replace(slot, first=row, end=row + 1) for row in range(first, end)]
            batch = join_rows_of(slot, [self._make(cursor, content, own, working_on, progress) for own in slots])
        else:
            batch = self._make(cursor, content, slot, working_on, progress)
        self._label(batch)
        return batch

    def _make(
        self, cursor: Cursor, content: Content, slot: Slot, working_on: Callable[[int], None], progress: Progress | None
    ) -> BatchPart:
        crops = slot if self._transform is None else self._transform.crops_of(slot, content)
        batch = BatchPart(cursor, content, slot, crops, working_on, progress)
        if self._is_whole:
            assert self._transform is not None
            batch.lay_out = partial(self._transform.crops_of, slot, content)
        if not content.is_full:
            pad_rows(np.flatnonzero(batch.index < 0), crops)
        for step in self._steps():
            step(batch)
        return batch

    def _steps(self) -> Iterator[Callable[[BatchPart], None]]:
        if self._native is not None:
            yield self._fill_natively
        yield self._python.fill_rest
        if self._python.has_fields:
            yield self._python.fill_fields
        yield self._python.replace_bad
        if self._transform is not None:
            yield self._transform
        if self._planner.schedule.rounds is not None:
            yield self._cut_patches

    def _fill_natively(self, batch: BatchPart) -> None:
        assert self._native is not None
        left = batch.left
        done = self._make_natively(self._native, batch)
        if done is None:
            raise Aborted
        done = self._with_exif(done, batch.crops)
        batch.left = np.setdiff1d(left, done, assume_unique=True) if len(done) < len(left) else left[:0]
        batch.read_s += self._native.read_s

    def _make_natively(self, native: NativeRows, batch: BatchPart) -> npt.NDArray[np.intp] | None:
        """Make the remaining rows that the library supports, and return them; None if the batch is no longer wanted."""
        samples, plan = batch.index[batch.left], batch.content.plan
        return native.fill(samples, batch.left, plan, batch.crops, batch.progress, batch.keys)

    def _with_exif(self, done: npt.NDArray[np.intp], crops: Slot) -> npt.NDArray[np.intp]:
        """Return the rows with a known EXIF orientation, if it is needed; Python makes the others."""
        exif = crops.rows["exif"]
        if not self._python.fields.moves:
            if self._planner.pipeline.exif == "ignore":
                exif[...] = 0  # it is not used, and the Python path does not read it
            return done
        unknown = exif[done] == 0  # unsupported blocks, which the library leaves to Python
        return done[~unknown] if unknown.any() else done

    def _cut_patches(self, batch: BatchPart) -> None:
        scales = [1, *(kind.scale for kind in self._planner.pictures.values())]
        for array, scale in zip(batch.slot.arrays, scales, strict=False):  # the last arrays are tokens of texts
            cut_rows(array, batch.slot.rows["place"] * scale, batch.slot.layout.patch * scale)

    def _label(self, batch: BatchPart) -> None:
        rows, served = batch.slot.rows, batch.index
        is_served: slice | npt.NDArray[np.bool_] = slice(None)
        if not batch.content.is_full or batch.bad:  # there may be padding and substitutes
            is_served = rows["index"] >= 0
            served = rows["index"][is_served].astype(np.int64)
        with naming_method("labels()"):
            rows["label"][is_served] = checked_class_numbers(self._planner.source.labels(served), len(served))
