"""PythonRows: fills rows of a batch one image at a time (read, plan, decode, resize) and replaces bad samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.loaders.data.sources.contract import has_fields
from penstock.loaders.data.sources.source_faults import name_sample
from penstock.loaders.make.batch_part import BatchPart
from penstock.loaders.make.batch_planner import Augments, BatchPlanner
from penstock.loaders.make.layout import Slot
from penstock.loaders.make.sample_reader import Loaded, SampleReader
from penstock.loaders.make.worker_fields import WorkerFields
from penstock.loaders.order.ledger import BadSample
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import INTERPOLATIONS
from penstock.pipelines.plan.crops import BatchPlan
from penstock.pipelines.plan.placed_crops import MAX_RESIZED_PIXELS, MAX_RESIZED_SIDE
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.sample.patches import view_image
from penstock.pipelines.sample.resize import RESIZERS, write_sample

_MAX_SUBSTITUTES = 63  # if this many more samples in a row are bad, the data set is bad


class PythonRows:
    """Fills the rows that the native library does not support, and those of bad samples; for use in one thread.

    Attributes:
        fields: makes the masks and image targets of the source, and checks its boxes.
    """

    def __init__(self, planner: BatchPlanner) -> None:
        self._planner = planner
        decoder = ImageDecoder(planner.pipeline, planner.decoder, judge=planner.on_repaired != "ignore")
        self._reader = SampleReader(planner.source, decoder, planner.sound)
        self.fields = WorkerFields(
            planner.source,
            planner.pipelines,
            decoder=planner.decoder,
            on_repaired=planner.on_repaired,
            in_patches=planner.schedule.rounds is not None or planner.pipeline.size is None,
        )
        self._makes_tokens = planner.text is not None and planner.text.tokenizer is not None
        self._resize = RESIZERS[planner.pipeline.resample]

    @property
    def has_fields(self) -> bool:
        """Whether samples have fields to make or to check."""
        return self.fields.has_work or self._makes_tokens

    def fill_rest(self, batch: BatchPart) -> None:
        """Make the images of the remaining rows, and record the bad samples."""
        if not len(batch.left):
            return
        self._reader.read_s = 0.0
        loaded: dict[int, Loaded] = {}
        for row, sample in zip(batch.left.tolist(), batch.index[batch.left].tolist(), strict=True):
            batch.working_on(sample)
            try:
                loaded[row] = self._reader.load(sample)
            except LoaderError as error:
                batch.bad[row] = self._bad(row, sample, error)
        plans = self._draw(loaded, batch) if loaded else []
        for place, (row, item) in enumerate(loaded.items()):
            batch.working_on(item.sample)
            try:
                self._fill_row(row, item, plans, place, batch)
            except LoaderError as error:
                batch.bad[row] = self._bad(row, item.sample, error)
        batch.read_s += self._reader.read_s

    def fill_fields(self, batch: BatchPart) -> None:
        """Make pictures and tokens of the rows that have an image, and record the samples with wrong fields."""
        rows = [row for row in np.flatnonzero(batch.index >= 0).tolist() if row not in batch.bad]
        wrong = self._fill_fields(rows, batch, batch.content.augments, batch.slot.first)
        for row, error in self.fields.repaired.items():
            batch.repaired[row] = self._repaired(row, int(batch.index[row]), error)
        for row, error in wrong.items():
            batch.bad[row] = self._bad(row, int(batch.index[row]), error)
            batch.repaired.pop(row, None)

    def _fill_fields(self, rows: list[int], batch: BatchPart, augments: Augments, first: int) -> dict[int, LoaderError]:
        """Make the fields of `rows`, and return the errors in samples' fields by row; as in WorkerFields.fill."""
        planner, of_batch = self._planner, (batch.working_on, batch.progress)
        wrong = self.fields.fill(rows, batch.crops, augments, first, *of_batch)
        rows = [row for row in rows if row not in wrong]
        if self._makes_tokens and rows:
            assert planner.text is not None
            assert has_fields(planner.source)
            batch.working_on(int(batch.crops.rows["index"][rows[0]]))
            drawn = planner.schedule.seed, batch.cursor.epoch, batch.keys
            wrong = wrong | planner.text.fill(planner.source, rows, batch.crops, *drawn)
        return wrong

    def replace_bad(self, batch: BatchPart) -> None:
        """Fill the rows of bad samples with substitutes, or with padding."""
        self._reader.read_s = 0.0
        for row in sorted(batch.bad):
            substitute = self._find_substitute(row, batch)
            batch.bad[row] = batch.bad[row]._replace(substitute=substitute)
            if substitute < 0:
                pad_rows(row, batch.crops)
                if self._planner.substitute and not self._planner.evaluation:
                    break  # the policy stops here; on failed storage every further read would be retried
        batch.read_s += self._reader.read_s

    def _find_substitute(self, row: int, batch: BatchPart) -> int:
        """Fill the row of a bad sample with the next good sample in the order; return that sample, -1 for none.

        Samples that the order never serves are not used: classes or sources without a share, samples left out.
        """
        planner = self._planner
        if not planner.substitute or planner.evaluation:
            return -1
        following = planner.schedule.next_in_order(batch.cursor, batch.slot.first + row, _MAX_SUBSTITUTES)
        candidates: list[int] = following.tolist()
        for candidate in dict.fromkeys(candidates):
            if candidate == batch.bad[row].sample:  # a random order may repeat it
                continue
            batch.working_on(candidate)
            try:
                item = self._reader.load(candidate)
                self._fill_row(row, item, self._draw({row: item}, batch), 0, batch)
                if self.has_fields:
                    keys = None if batch.keys is None else batch.keys[[row]]
                    drawn = planner.draw_augments(batch.cursor, np.array([candidate]), keys)
                    for error in self._fill_fields([row], batch, drawn, -row).values():
                        raise error
                    for error in self.fields.repaired.values():
                        batch.repaired[row] = self._repaired(row, candidate, error)
            except LoaderError as error:
                self._bad(row, candidate, error)
                batch.repaired.pop(row, None)
                continue
            return candidate
        return -1

    def _draw(self, loaded: dict[int, Loaded], batch: BatchPart) -> list[BatchPlan]:
        """Draw the crops of `loaded` (row -> sample) for each view."""
        numbers = np.array([(item.sample, item.width, item.height) for item in loaded.values()], np.int64)
        if batch.keys is not None:
            numbers[:, 0] = batch.keys[list(loaded)]
        return [batch.content.plan.draw(view, *numbers.T) for view in range(batch.crops.layout.num_views)]

    def _fill_row(self, row: int, item: Loaded, plans: list[BatchPlan], at: int, batch: BatchPart) -> None:
        """Write a sample to its row, with the crops at index `at` of `plans`."""
        if batch.lay_out is not None:
            batch.crops = batch.lay_out((item.height, item.width))
        self._write(row, item, plans, at, batch)
        first, done = plans[0], batch.crops.rows[row]
        done["index"], done["label"], done["size"] = item.sample, -1, (item.width, item.height)
        for name, column in (("window", "windows"), ("place", "places"), ("turn", "turns"), ("flip", "flips")):
            views = [getattr(plan, column)[at] for plan in plans]
            done[name] = getattr(first, column)[at] if len(plans) == 1 else views
        if self.fields.moves or self._planner.pipeline.exif == "apply":
            done["exif"] = self._reader.exif(item)

    def _write(self, row: int, item: Loaded, plans: list[BatchPlan], at: int, batch: BatchPart) -> None:
        """Decode the windows of a sample's views, and write them to its row."""
        windows = [plan.windows[at].tolist() for plan in plans]
        left, top = min(window[0] for window in windows), min(window[1] for window in windows)
        right = max(x + w for x, _, w, _ in windows)
        bottom = max(y + h for _, y, _, h in windows)
        pixels = self._reader.crop(item, (left, top, right - left, bottom - top))
        if self._reader.repair:
            error = LoaderError("E-REPAIRED", f"libjpeg repaired it: {self._reader.repair}")
            if self._planner.on_repaired != "count":
                raise error
            batch.repaired[row] = self._repaired(row, item.sample, error)
        filters = [choose_filter(batch, row, item.sample, view) for view in range(len(plans))]
        for (x, y, w, h), plan, images, number in zip(windows, plans, batch.crops.images, filters, strict=True):
            crop = pixels[y - top : y - top + h, x - left : x - left + w]
            own, place = images[row : row + 1], plan.places[at].tolist()
            if max(place[2:]) > MAX_RESIZED_SIDE:
                raise _too_long_error(item.width, item.height)
            layout = batch.crops.layout
            if layout.row_pixels and place[2] * place[3] > layout.row_pixels:
                raise _too_large_error(place[2], place[3], layout.row_pixels)
            if layout.has_places:
                own = view_image(own[0], place[2], place[3], self._planner.pipeline.channels)[None]
            slot = torch.from_numpy(own).permute(0, 3, 1, 2)
            placing: Any = tuple(place), int(plan.turns[at]), self._planner.pipeline.fill, INTERPOLATIONS[number]
            write_sample(crop, slot, bool(plan.flips[at]), self._resize, *placing)

    def _repaired(self, row: int, sample: int, error: LoaderError) -> BadSample:
        return self._bad(row, sample, error)._replace(substitute=sample)

    def _bad(self, row: int, sample: int, error: LoaderError) -> BadSample:
        path = error.path if error.path is not None else name_sample(self._planner.source, sample)
        path = path if isinstance(path, bytes) else path.encode(errors="surrogateescape")
        if not error.of_sample:  # no package, no descriptor left: another sample would fail too
            raise error.locate(sample=sample, path=path) from error
        raised = None if self._planner.substitute else error.__cause__  # replaced samples are kept for an epoch
        return BadSample(sample, error.code, error.cause, path, -1, row, error.fix, raised)


def _too_long_error(width: int, height: int) -> LoaderError:
    cause = f"the whole image of {width}x{height} pixels would have more than {MAX_RESIZED_PIXELS:,} after its resize"
    return LoaderError("E-BOMB", cause, fix="pass ImagePipeline(resize_first=False), or remove the image")


def _too_large_error(width: int, height: int, most: int) -> LoaderError:
    cause = f"the image has {width}x{height} pixels in a batch, more than max_output_pixels={most}"
    fix = f"pass ImagePipeline(max_output_pixels={width * height}), or a smaller shorter_side or longer_side"
    return LoaderError("E-BOMB", cause, fix=fix)


def choose_filter(batch: BatchPart, row: int, sample: int, view: int = 0) -> int:
    """Return the filter by which `sample` is resized for a row of the batch, a number of INTERPOLATIONS."""
    key = sample if batch.keys is None else batch.keys[row]
    return int(batch.content.plan.filters(view, np.array([key], np.int64))[0])


def pad_rows(which: int | npt.NDArray[np.intp], slot: Slot) -> None:
    """Fill rows with padding: black, with index and label -1."""
    for array in slot.arrays:
        array[which] = 0
    slot.rows[which] = np.zeros((), slot.rows.dtype)
    slot.rows["index"][which] = slot.rows["label"][which] = -1
