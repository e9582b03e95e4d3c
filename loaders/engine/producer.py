"""Producer runs the sample stage over one batch: read, plan, decode and resize each sample into a slot."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from penstock.loaders.engine.native_rows import NativeRows, native_rows
from penstock.loaders.engine.sample_reader import Loaded, SampleReader, SoundSamples
from penstock.loaders.sources.contract import Source
from penstock.loaders.stream.contract import BadSample, Cursor
from penstock.loaders.stream.order import Schedule
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Pixels, Window
from penstock.pipelines.native.rows import Progress
from penstock.pipelines.plan.crops import BatchPlan, plan_batch
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.sample.resize import RESIZERS, write_sample
from penstock.pipelines.spec import ImagePipeline

# What is noted of each row beside its pixels: int64 index and label, crop window (x, y, width, height), mirror flag.
ROW_DTYPE = np.dtype([("index", "<i8"), ("label", "<i8"), ("window", "<i4", (4,)), ("flip", "?")])
_MAX_SUBSTITUTES = 64  # so many bad samples in a row mean that the data set, not a sample, is bad


class MakeTask(NamedTuple):
    """Say how rows become tasks for another decoder.

    Attributes:
        of_row: (reader, sample, window, mirrored) -> task, or None to decode the row here.
        of_data: (JPEG or pixels as in Prepared, window in them, mirrored) -> the task of a row that the native library
            has prepared, of which of_row would make one too; None to ask of_row about every row.
    """

    of_row: Callable[[SampleReader, Loaded, Window, bool], Any]
    of_data: Callable[[Pixels, Window, bool], Any] | None = None


class Aborted(Exception):
    """Signals that the batch is no longer wanted."""


@dataclass(frozen=True, kw_only=True)
class ProducerSettings:
    """Hold all that decides a batch's content; it is sent to every worker.

    Attributes:
        source: images and labels.
        pipeline: crops, size and resampling.
        schedule: which samples make a batch.
        decoder: name of the JPEG decoder, or "auto".
        substitute: policy "replace": put the next good sample in the row of a bad one.
        evaluation: serve each sample at most once: a bad one's row becomes padding instead.
        device: device of the loader's batches, for engines that make them there.
        on_repaired: what becomes of an image that libjpeg repairs; see BadSamplePolicy.
        sound: the samples in which nothing is repaired, as far as this process knows.
    """

    source: Source
    pipeline: ImagePipeline
    schedule: Schedule
    decoder: str
    substitute: bool
    evaluation: bool
    device: str = "cpu"
    on_repaired: str = "count"
    sound: SoundSamples = field(default_factory=SoundSamples)


class Producer:
    """Fills slots; belongs to one thread. Nothing but (settings, cursor) decides what it writes.

    Args:
        make_task: called for each row first; the pixels of a row that becomes a task are left as they are.

    Attributes:
        tasks: tasks of the latest batch by row, in the order of the rows.
        read_s: seconds of the latest batch that were spent inside the source.
        repaired: samples of the latest batch of which libjpeg made up a part, by row.
    """

    def __init__(self, settings: ProducerSettings, make_task: MakeTask | None = None) -> None:
        self._settings, self._make_task = settings, make_task
        decoder = ImageDecoder(settings.pipeline, settings.decoder, judge=settings.on_repaired != "ignore")
        self._reader = SampleReader(settings.source, decoder, settings.sound)
        self._resize = RESIZERS[settings.pipeline.resample]
        natively = make_task is None or make_task.of_data is not None
        self._native = native_rows(settings.source, settings.pipeline, settings.decoder) if natively else None
        self._sound = settings.sound.of(settings.source) if settings.on_repaired != "ignore" else None
        self.tasks: dict[int, Any] = {}
        self.repaired: dict[int, BadSample] = {}
        self.read_s = 0.0

    def produce(
        self,
        cursor: Cursor,
        pixels: npt.NDArray[np.uint8],
        rows: npt.NDArray[np.void],
        working_on: Callable[[int], None],
        progress: Progress | None = None,
    ) -> tuple[tuple[BadSample, ...], float]:
        """Write the batch at `cursor` to `pixels` [batch, height, width, 3] and `rows` (ROW_DTYPE) [batch].

        Raises LoaderError for what is no sample's fault.

        `working_on(sample)` is called before each sample (a heartbeat; it may raise Aborted). Returns the bad samples
        in row order, and the seconds taken.
        """
        started, self._reader.read_s = time.perf_counter(), 0.0
        self.tasks.clear()
        self.repaired.clear()
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        index = self._settings.schedule.batch(cursor.epoch, cursor.position)
        for row in np.flatnonzero(index < 0).tolist():
            self._pad(row, pixels, rows)
        left, native_s = np.flatnonzero(index >= 0), 0.0
        if self._native is not None:
            left = self._fill_natively(self._native, cursor.epoch, index, left, pixels, rows, progress)
            native_s = self._native.stage.read_s
        self._reader.will_need(index[left])
        bad: dict[int, BadSample] = {}
        loaded: dict[int, Loaded] = {}
        for row, sample in zip(left.tolist(), index[left].tolist(), strict=True):
            working_on(sample)
            try:
                loaded[row] = self._reader.load(sample)
            except LoaderError as error:
                bad[row] = self._bad(row, sample, error)
        plan = self._plan(cursor.epoch, list(loaded.values())) if loaded else None
        for place, (row, item) in enumerate(loaded.items()):
            assert plan is not None
            working_on(item.sample)
            try:
                self._write(item, plan, place, images, row)
                self._book(rows, row, item, plan, place)
            except LoaderError as error:
                bad[row] = self._bad(row, item.sample, error)
        for row, entry in bad.items():
            bad[row] = self._replace(cursor.epoch, entry, images, pixels, rows, working_on)
        self._label(rows)
        self.read_s = self._reader.read_s + native_s
        self.tasks = dict(sorted(self.tasks.items()))  # the tasks of substitutes came last
        return tuple(bad[row] for row in sorted(bad)), time.perf_counter() - started

    def _fill_natively(
        self,
        native: NativeRows,
        epoch: int,
        index: npt.NDArray[np.int64],
        wanted: npt.NDArray[np.intp],
        pixels: npt.NDArray[np.uint8],
        rows: npt.NDArray[np.void],
        progress: Progress | None,
    ) -> npt.NDArray[np.intp]:
        """Fill the rows `wanted` by the native library, or make tasks of them; return those that are left to Python."""
        plan = partial(plan_batch, self._settings.pipeline, self._settings.schedule.seed, epoch)
        task_of = self._make_task.of_data if self._make_task is not None else None
        if task_of is None:
            filled = native.fill(index[wanted], wanted, plan, pixels, progress)
        else:
            prepared = native.prepare(index[wanted], wanted, plan, progress, self._sound)
            filled = prepared.rows if prepared is not None else None
        if filled is None:
            raise Aborted
        if task_of is not None and prepared is not None:
            made = map(task_of, prepared.data, prepared.inside, (filled["flip"] != 0).tolist())
            self.tasks.update(zip(filled["row"].tolist(), made, strict=True))
        done = filled["row"] if len(filled) < len(rows) else slice(None)  # slices take a fraction of the time
        for name, column in (("index", "sample"), ("window", "window"), ("flip", "flip")):
            rows[name][done] = filled[column]
        rows["label"][done] = -1
        return np.setdiff1d(wanted, filled["row"], assume_unique=True) if len(filled) < len(wanted) else wanted[:0]

    def _label(self, rows: npt.NDArray[np.void]) -> None:
        served = rows["index"] >= 0
        try:
            rows["label"][served] = self._settings.source.labels(rows["index"][served].astype(np.int64))
        except LoaderError:
            raise
        except Exception as error:  # told apart from errors of the sample that was read last
            cause = f"the source's labels() raised {type(error).__name__}: {error}"
            raise LoaderError("E-DATASET", cause, fix="see the cause") from error

    def _plan(self, epoch: int, loaded: list[Loaded]) -> BatchPlan:
        numbers = np.array([(item.sample, item.width, item.height) for item in loaded], np.int64).reshape(-1, 3)
        schedule = self._settings.schedule
        return plan_batch(self._settings.pipeline, schedule.seed, epoch, numbers[:, 0], numbers[:, 1], numbers[:, 2])

    def _write(self, item: Loaded, plan: BatchPlan, place: int, images: torch.Tensor, row: int) -> None:
        window, flip = tuple(plan.windows[place].tolist()), bool(plan.flips[place])
        task = self._make_task.of_row(self._reader, item, window, flip) if self._make_task is not None else None
        if task is not None:
            self.tasks[row] = task
        else:
            pixels = self._reader.crop(item, window)
            if self._reader.repair:
                self._note_repair(row, item.sample)
            write_sample(pixels, images[row : row + 1], flip, self._resize)

    def _note_repair(self, row: int, sample: int) -> None:
        error = LoaderError("E-REPAIRED", f"libjpeg repaired it: {self._reader.repair}")
        if self._settings.on_repaired != "count":
            raise error
        self.repaired[row] = self._bad(row, sample, error)._replace(substitute=sample)

    @staticmethod
    def _book(rows: npt.NDArray[np.void], row: int, item: Loaded, plan: BatchPlan, place: int) -> None:
        rows[row] = (item.sample, -1, plan.windows[place], plan.flips[place])

    @staticmethod
    def _pad(row: int, pixels: npt.NDArray[np.uint8], rows: npt.NDArray[np.void]) -> None:
        pixels[row] = 0
        rows[row] = (-1, -1, (0, 0, 0, 0), False)

    def _bad(self, row: int, sample: int, error: LoaderError) -> BadSample:
        path = error.path if error.path is not None else self._settings.source.path(sample)
        path = path if isinstance(path, bytes) else path.encode(errors="surrogateescape")
        if not error.of_sample:  # a missing package, no descriptor left: another sample would fare no better
            raise error.locate(sample=sample, path=path) from error
        return BadSample(sample, error.code, error.cause, path, -1, row, error.fix)

    def _replace(
        self,
        epoch: int,
        entry: BadSample,
        images: torch.Tensor,
        pixels: npt.NDArray[np.uint8],
        rows: npt.NDArray[np.void],
        working_on: Callable[[int], None],
    ) -> BadSample:
        """Fill the row of a bad sample with the next good sample of the data set, or with padding."""
        row, n = entry.row, self._settings.schedule.n
        if self._settings.substitute and not self._settings.evaluation:
            for distance in range(1, min(_MAX_SUBSTITUTES, n)):
                candidate = (entry.sample + distance) % n
                working_on(candidate)
                try:
                    item = self._reader.load(candidate)
                    plan = self._plan(epoch, [item])
                    self._write(item, plan, 0, images, row)
                except LoaderError as error:
                    self._bad(row, candidate, error)
                    continue
                self._book(rows, row, item, plan, 0)
                return entry._replace(substitute=candidate)
        self._pad(row, pixels, rows)
        return entry
