"""PythonRows fills rows of a batch one image at a time: read, plan, decode, resize; bad samples are replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.loaders.data.files.source_faults import name_sample
from penstock.loaders.make.batch_planner import BatchPlanner
from penstock.loaders.make.layout import Slot
from penstock.loaders.make.sample_reader import Loaded, SampleReader
from penstock.loaders.make.worker_fields import WorkerFields
from penstock.loaders.order.cursor import NOWHERE, Cursor
from penstock.loaders.order.ledger import BadSample
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.plan.crops import BatchPlan
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.sample.patches import view_image
from penstock.pipelines.sample.resize import RESIZERS, write_sample

_MAX_SUBSTITUTES = 63  # so many more bad samples in a row mean that the data set, not a sample, is bad


class PythonRows:
    """Fills the rows that the native library leaves; belongs to one thread.

    Attributes:
        fields: makes what workers have to make of the source's fields.
        repaired: samples of the latest batch in which libjpeg filled in missing data, by row.
    """

    def __init__(self, planner: BatchPlanner) -> None:
        self._planner = planner
        decoder = ImageDecoder(planner.pipeline, planner.decoder, judge=planner.on_repaired != "ignore")
        self._reader = SampleReader(planner.source, decoder, planner.sound)
        self.fields = WorkerFields(
            planner.source, exif=planner.pipeline.exif, in_patches=planner.schedule.rounds is not None
        )
        self._resize = RESIZERS[planner.pipeline.resample]
        self.repaired: dict[int, BadSample] = {}
        self._keys: npt.NDArray[np.int64] | None = None
        self._cursor = NOWHERE

    @property
    def read_s(self) -> float:
        """Seconds of the latest batch that were spent inside the source."""
        return self._reader.read_s

    def fill(
        self,
        cursor: Cursor,
        index: npt.NDArray[np.int64],
        wanted: npt.NDArray[np.intp],
        batch: Slot,
        working_on: Callable[[int], None],
        keys: npt.NDArray[np.int64] | None = None,
        refused: Mapping[int, LoaderError] = MappingProxyType({}),
        first: int = 0,
    ) -> dict[int, BadSample]:
        """Fill the rows `wanted` of `batch`, and return the bad samples among them by row.

        cursor: its place in the stream; index: int64 [rows], the sample of each row; working_on: as Producer.produce
        takes it; keys: numbers by which the rows are drawn, int64 [rows], None for their samples; refused: what is
        wrong with other rows, by row; first: row of the whole batch at which `batch` begins.
        """
        self._reader.read_s, self.repaired, self._keys, self._cursor = 0.0, {}, keys, cursor
        self._reader.will_need(index[wanted])
        bad = {row: self._bad(row, int(index[row]), error) for row, error in refused.items()}
        loaded: dict[int, Loaded] = {}
        for row, sample in zip(wanted.tolist(), index[wanted].tolist(), strict=True):
            working_on(sample)
            try:
                loaded[row] = self._reader.load(sample)
            except LoaderError as error:
                bad[row] = self._bad(row, sample, error)
        plans = self._draw(loaded, batch) if loaded else []
        for place, (row, item) in enumerate(loaded.items()):
            working_on(item.sample)
            try:
                self._fill_row(row, item, plans, place, batch)
            except LoaderError as error:
                bad[row] = self._bad(row, item.sample, error)
        for row, entry in bad.items():
            bad[row] = self._replace(entry, first + row, batch, working_on)
            if bad[row].substitute < 0 and self._planner.substitute and not self._planner.evaluation:
                break  # the policy stops here, and where storage is dead every further read takes its retries
        return bad

    def _draw(self, loaded: dict[int, Loaded], batch: Slot) -> list[BatchPlan]:
        """Draw for each view how the images of samples by row are made."""
        numbers = np.array([(item.sample, item.width, item.height) for item in loaded.values()], np.int64)
        if self._keys is not None:
            numbers[:, 0] = self._keys[list(loaded)]
        draw = self._planner.plan(self._cursor).draw
        return [draw(view, *numbers.T) for view in range(batch.layout.num_views)]

    def _fill_row(self, row: int, item: Loaded, plans: list[BatchPlan], at: int, batch: Slot) -> None:
        """Write a sample, whose images are made as place `at` of `plans` says, to its row."""
        self._write(row, item, plans, at, batch)
        first, done = plans[0], batch.rows[row]
        done["index"], done["label"], done["size"] = item.sample, -1, (item.width, item.height)
        for name, column in (("window", "windows"), ("place", "places"), ("turn", "turns"), ("flip", "flips")):
            views = [getattr(plan, column)[at] for plan in plans]
            done[name] = getattr(first, column)[at] if len(plans) == 1 else views
        if self.fields.moves or self._planner.pipeline.exif == "apply":
            done["exif"] = self._reader.exif(item)
        if self.fields.has_work:
            number = item.sample if self._keys is None else self._keys[row]
            moves = self._planner.plan_moves(self._cursor, np.array([number]))
            for error in self.fields.fill([row], batch.rows, batch.extras, moves).values():
                raise error

    def _write(self, row: int, item: Loaded, plans: list[BatchPlan], at: int, batch: Slot) -> None:
        """Decode what the views of a sample show, and draw them to its row."""
        windows = [plan.windows[at].tolist() for plan in plans]
        left, top = min(window[0] for window in windows), min(window[1] for window in windows)
        right = max(x + w for x, _, w, _ in windows)
        bottom = max(y + h for _, y, _, h in windows)
        pixels = self._reader.crop(item, (left, top, right - left, bottom - top))
        if self._reader.repair:
            error = LoaderError("E-REPAIRED", f"libjpeg repaired it: {self._reader.repair}")
            if self._planner.on_repaired != "count":
                raise error
            self.repaired[row] = self._bad(row, item.sample, error)._replace(substitute=item.sample)
        for (x, y, w, h), plan, images in zip(windows, plans, batch.images, strict=True):
            crop = pixels[y - top : y - top + h, x - left : x - left + w]
            own, place = images[row : row + 1], plan.places[at].tolist()
            if batch.layout.patch:
                own = view_image(own[0], place[2], place[3], self._planner.pipeline.channels)[None]
            slot = torch.from_numpy(own).permute(0, 3, 1, 2)
            placing: Any = tuple(place), int(plan.turns[at]), self._planner.pipeline.fill
            write_sample(crop, slot, bool(plan.flips[at]), self._resize, *placing)

    def _bad(self, row: int, sample: int, error: LoaderError) -> BadSample:
        path = error.path if error.path is not None else name_sample(self._planner.source, sample)
        path = path if isinstance(path, bytes) else path.encode(errors="surrogateescape")
        if not error.of_sample:  # a missing package, no descriptor left: another sample would fare no better
            raise error.locate(sample=sample, path=path) from error
        raised = None if self._planner.substitute else error.__cause__  # what is replaced is kept for an epoch
        return BadSample(sample, error.code, error.cause, path, -1, row, error.fix, raised)

    def _replace(
        self, entry: BadSample, row_of_batch: int, batch: Slot, working_on: Callable[[int], None]
    ) -> BadSample:
        """Fill the row of a bad sample with the next good sample in the order, or with padding.

        What the order never serves is no substitute either: classes or sources without a share, samples left out.
        """
        row, schedule = entry.row, self._planner.schedule
        if self._planner.substitute and not self._planner.evaluation:
            following = schedule.next_in_order(self._cursor, row_of_batch, _MAX_SUBSTITUTES)
            for candidate in dict.fromkeys(following.tolist()):
                if candidate == entry.sample:  # an order that draws may have it again
                    continue
                working_on(candidate)
                try:
                    item = self._reader.load(candidate)
                    self._fill_row(row, item, self._draw({row: item}, batch), 0, batch)
                except LoaderError as error:
                    self._bad(row, candidate, error)
                    continue
                return entry._replace(substitute=candidate)
        pad_rows(row, batch)
        return entry


def pad_rows(which: int | npt.NDArray[np.intp], batch: Slot) -> None:
    """Make rows padding: black, with index and label -1."""
    for array in batch.arrays:
        array[which] = 0
    batch.rows[which] = np.zeros((), batch.rows.dtype)
    batch.rows["index"][which] = batch.rows["label"][which] = -1
