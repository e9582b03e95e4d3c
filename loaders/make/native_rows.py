"""NativeRows: the native library fills the rows of a batch that it supports; Python fills the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import LocatedSource, Source, is_located
from penstock.loaders.make.layout import BatchLayout, Slot
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Pixels, Window
from penstock.pipelines.native.library import native_library
from penstock.pipelines.native.rows import (
    ENCODED,
    FILE,
    NO_NAMES,
    ROW,
    STORED,
    STRIPS,
    Crops,
    Names,
    NativeStage,
    Progress,
    Rows,
    upright_sizes,
)
from penstock.pipelines.plan.crops import BatchPlan, choose_filters, native_crops, plan_views
from penstock.pipelines.spec import ImagePipeline

Keys = npt.NDArray[np.int64] | None
NATIVE_DECODERS = ("auto", "native")  # values of `decoder` that leave ordinary JPEGs to the native library
_MOST_FILE_BYTES = 256 << 20  # per batch, as in batch.c
_HEAD_BYTES = 1 << 16  # enough for the header of nearly every photo


class Plan(NamedTuple):
    """Functions that draw the crops of images.

    Attributes:
        draw: (view, keys, widths, heights), int64 [n] each except the view -> crops of these images.
        filters: (view, keys) -> filters of their resizes, uint8 [n], numbers of INTERPOLATIONS.
        layout: layout of the images before transforms.
        crops: the same as `draw` for the native library and this layout; None if only `draw` supports it.
    """

    draw: Callable[[int, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]], BatchPlan]
    filters: Callable[[int, npt.NDArray[np.int64]], npt.NDArray[np.uint8]]
    layout: BatchLayout
    crops: Crops | None = None


def plan_images(pipelines: Sequence[ImagePipeline], seed: int, epoch: int, layout: BatchLayout) -> Plan:
    """Return the plan of the images of `layout`, one pipeline for each view."""
    crops = native_crops(pipelines, seed, epoch, layout.offsets)
    drawn_by = pipelines, seed, epoch
    return Plan(partial(plan_views, *drawn_by), partial(choose_filters, *drawn_by), layout, crops)


class Prepared(NamedTuple):
    """The rows of a batch that are ready for another decoder.

    Attributes:
        rows: ROW [m], with `sample`, `row`, `window` and `flip`.
        data: for each row a JPEG, uint8 [bytes], or its window's pixels, uint8 [height, width, 3]; views of memory
            that nothing else uses.
        inside: the window of each row within its data.
    """

    rows: Rows
    data: list[Pixels]
    inside: list[Window]


class NativeRows:
    """Fill rows with the native library, or prepare them for another decoder; for use in one thread.

    Attributes:
        stage: the library's calls.
    """

    def __init__(self, source: LocatedSource, stage: NativeStage) -> None:
        self._source, self.stage = source, stage
        self._locate_s = 0.0
        self._memory = np.empty(0, np.uint8)  # of a batch's rows

    @property
    def read_s(self) -> float:
        """Seconds that the latest batch spent reading, or waiting for downloads."""
        return self._locate_s + self.stage.read_s

    def fill(
        self,
        samples: npt.NDArray[np.int64],
        places: npt.NDArray[np.intp],
        plan: Plan,
        slot: Slot,
        progress: Progress | None = None,
        keys: Keys = None,
        *,
        draws: bool = True,
    ) -> npt.NDArray[np.intp] | None:
        """Write the images of `samples` (int64 [n]), and how they were made, to the rows `places` of `slot`.

        keys: keys of the random draws of the slot's rows, int64 [rows]; None if the samples are the keys. Without
        `draws` images are decoded but not resized, for measurements. Returns the filled `places`; None if
        the batch is no longer wanted.
        """
        if len(self._memory) < len(samples) * ROW.itemsize:
            self._memory = np.empty(len(samples) * ROW.itemsize, np.uint8)
        own = self._memory[: len(samples) * ROW.itemsize]
        own[:] = 0
        rows, names = self._locate(samples, slot.first + places, own.view(ROW))
        num_views = slot.layout.num_views
        if num_views > 1:
            rows = np.repeat(rows, num_views)
            rows["repeats"] = np.arange(len(rows)) % num_views > 0
        memory = slot.memory if draws else None
        if plan.crops is None:
            rows["row"] -= slot.first
            return self._fill_drawn(rows, names, plan, slot, memory, progress, keys)
        crops = plan.crops if slot.layout is plan.layout else plan.crops.at(slot.layout.offsets[:num_views])
        numbers = None if keys is None else keys[places]
        made = self.stage.make(rows, names, crops, numbers, memory, slot.all_rows, progress)
        if made is None or made == len(places):
            return None if made is None else places
        filled = (rows["result"] == 0).reshape(-1, num_views).all(1)
        return places[filled] if len(filled) else places[:0]

    def _fill_drawn(
        self,
        rows: Rows,
        names: Names,
        plan: Plan,
        slot: Slot,
        memory: npt.NDArray[np.uint8] | None,
        progress: Progress | None,
        keys: Keys,
    ) -> npt.NDArray[np.intp] | None:
        """Fill located rows with crops drawn by numpy."""
        layout, num_views = slot.layout, slot.layout.num_views
        wanted = self.stage.load(rows, names, progress)
        rows = _keep_supported(rows)  # all views of an image, or none
        if wanted and len(rows):
            for view, part in enumerate(layout.images):
                of_view = rows[view::num_views]
                _draw(of_view, plan, keys, view)
                if layout.row_pixels:  # Python refuses images that are too large
                    rows = of_view = rows[rows["place"][:, 2:].prod(1, np.int64) <= layout.row_pixels]
                sides = of_view["place"][:, :1:-1].T if layout.has_places else part.shape[:2]
                of_view["out_height"], of_view["out_width"] = sides
                of_view["out"] = slot.offsets[view] + of_view["row"].astype(np.int64) * part.row_bytes
            wanted = self.stage.fill(rows, memory)
        if not wanted:
            return None
        images = rows.reshape(-1, num_views)
        images = images[(images["result"] == 0).all(1)] if np.count_nonzero(rows["result"]) else images
        note_rows(images, slot.rows)
        return images["row"][:, 0].astype(np.intp)

    def prepare(
        self,
        samples: npt.NDArray[np.int64],
        places: npt.NDArray[np.intp],
        plan: Plan,
        progress: Progress | None = None,
        sound: npt.NDArray[np.bool_] | None = None,
        keys: Keys = None,
    ) -> Prepared | None:
        """Prepare `samples` (int64 [n]) for another decoder, at the rows `places` of the batch; None as in fill().

        Whole files are only used for samples that need no repair according to `sound`, bool [all samples].
        """
        rows, names = self._locate(samples, places)
        if sound is not None:
            rows = rows[~_is_whole(rows) | sound[rows["sample"]]]
        try:
            sizes = np.where(_is_whole(rows), rows["size"], 0).clip(0, _MOST_FILE_BYTES)
            files = np.empty(min(int(sizes.sum()), _MOST_FILE_BYTES), np.uint8)
            if not self.stage.load(rows, names, progress, files):
                return None
            rows = _keep_supported(rows)
            if plan.crops is None:
                _draw(rows, plan, keys)
            else:
                self.stage.plan(rows, plan.crops, None if keys is None else keys[rows["row"]])
                rows = _keep_supported(rows)
            drawn = rows["window"].copy()
            pixel_bytes = 3 * drawn[:, 2].astype(np.int64) * drawn[:, 3]
            room = np.where(rows["kind"] == STRIPS, rows["size"] + 2, pixel_bytes)
            parts = np.empty(int(room[~_is_whole(rows)].sum()), np.uint8)
        except MemoryError:  # the Python path reads one image at a time
            return Prepared(rows[:0], [], [])
        if not self.stage.cut(rows, parts):
            return None
        drawn, rows = drawn[rows["result"] == 0], _keep_supported(rows)
        data, inside = _slice_views(rows, files, parts), list(map(tuple, rows["window"].tolist()))
        rows["window"] = drawn
        return Prepared(rows, data, inside)

    def sizes(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return width and height of the upright images from their headers, int64 [n, 2]; 0 where Python must read."""
        rows, names = self._locate(samples, np.arange(len(samples)))
        found = np.zeros((len(samples), 2), np.int64)
        whole = _is_whole(rows)
        heads = whole & (rows["kind"] != STORED)  # all bytes of a stored file are checked
        rows["size"][heads] = np.minimum(rows["size"][heads], _HEAD_BYTES)
        rows["fd"][~whole] = -1  # the sizes are in the cache's records, so the kernel need not read ahead
        self.stage.load(rows, names)
        known = _keep_supported(rows)
        found[known["row"]] = np.stack(upright_sizes(known), 1)
        return found

    def takes(self, samples: npt.NDArray[np.int64]) -> int:
        """Return how many of `samples` (int64 [n]) the library can make, according to their headers."""
        rows, names = self._locate(samples, np.zeros(len(samples), np.intp))
        self.stage.load(rows, names)
        return int(np.count_nonzero(rows["result"] == 0))

    def _locate(
        self, samples: npt.NDArray[np.int64], places: npt.NDArray[np.intp], rows: Rows | None = None
    ) -> tuple[Rows, Names]:
        """Return a row with the location of each sample, in `rows` if given; none if the source cannot locate them."""
        rows = np.zeros(len(samples), ROW) if rows is None else rows
        rows["sample"], rows["row"] = samples, places
        started = time.perf_counter()
        try:
            return rows, self._source.locate(samples, rows)
        except LoaderError:  # a cache that was replaced: the Python path names the sample
            return rows[:0], NO_NAMES
        finally:
            self._locate_s = time.perf_counter() - started


def _keep_supported(rows: Rows) -> Rows:
    return rows[rows["result"] == 0] if np.count_nonzero(rows["result"]) else rows


def _draw(rows: Rows, plan: Plan, keys: Keys, view: int = 0) -> None:
    """Draw the crops of loaded rows."""
    numbers = rows["sample"].astype(np.int64) if keys is None else keys[rows["row"]]
    drawn = plan.draw(view, numbers, *upright_sizes(rows))
    rows["window"], rows["place"] = drawn.windows, drawn.places
    rows["turn"], rows["flip"], rows["interpolation"] = drawn.turns, drawn.flips, plan.filters(view, numbers)


def note_rows(filled: Rows, rows: npt.NDArray[np.void]) -> None:
    """Copy the served values from native rows, ROW [m, views], to the rows of the slot."""
    done = filled["row"][:, 0] if len(filled) < len(rows) else slice(None)  # slices are much faster
    rows["index"][done], rows["label"][done] = filled["sample"][:, 0], -1
    rows["size"][done] = np.stack(upright_sizes(filled[:, 0]), 1)
    rows["exif"][done] = filled["exif"][:, 0]
    for name in ("window", "place", "turn", "flip"):
        rows[name][done] = filled[name] if filled.shape[1] > 1 else filled[name][:, 0]


def _is_whole(rows: Rows) -> npt.NDArray[np.bool_]:
    kinds = rows["kind"]
    whole: npt.NDArray[np.bool_] = (kinds == FILE) | (kinds == STORED) | (kinds == ENCODED)
    return whole


def _slice_views(rows: Rows, files: Pixels, parts: Pixels) -> list[Pixels]:
    """Return a view of each row's bytes, where load() and cut() put them."""
    whole, ends = _is_whole(rows), rows["at"] + rows["size"]
    views = [
        (files if from_files else parts)[begin:end]
        for from_files, begin, end in zip(whole.tolist(), rows["at"].tolist(), ends.tolist(), strict=True)
    ]
    for row in np.flatnonzero(~whole & (rows["kind"] != STRIPS)).tolist():
        views[row] = views[row].reshape(rows["window"][row, 3], rows["window"][row, 2], 3)
    return views


def suits_native_library(source: Source, pipeline: ImagePipeline, decoder: str) -> bool:
    """Return whether the library is built, and decodes ordinary JPEGs for this source, decoder and resampling."""
    suits = decoder in NATIVE_DECODERS and pipeline.resample == "torch" and pipeline.depth == 8
    suits = suits and not pipeline.keeps_channels
    return suits and native_library() is not None and is_located(source)


def native_rows(source: Source, pipeline: ImagePipeline, decoder: str) -> NativeRows | None:
    """Return a NativeRows; None if suits_native_library returns False."""
    if not suits_native_library(source, pipeline, decoder):
        return None
    library = native_library()
    assert library is not None
    assert isinstance(source, LocatedSource)
    is_upright = pipeline.exif == "apply"
    stage = NativeStage(
        library, pipeline.max_pixels, apply_exif=is_upright, channels=pipeline.channels, fill=pipeline.fill
    )
    return NativeRows(source, stage)
