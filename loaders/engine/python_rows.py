"""PythonRows fills rows of a batch one image at a time: read, plan, decode, resize; bad samples are replaced."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from penstock.loaders.engine.producer_settings import ProducerSettings
from penstock.loaders.engine.sample_reader import Loaded, SampleReader
from penstock.loaders.stream.engine_contract import BadSample
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Window
from penstock.pipelines.plan.crops import BatchPlan, plan_batch
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.sample.resize import RESIZERS, write_sample

_MAX_SUBSTITUTES = 64  # so many bad samples in a row mean that the data set, not a sample, is bad


class PythonRows:
    """Fills the rows that the native library leaves; belongs to one thread.

    Attributes:
        repaired: samples of the latest batch in which libjpeg filled in missing data, by row.
    """

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        decoder = ImageDecoder(settings.pipeline, settings.decoder, judge=settings.on_repaired != "ignore")
        self._reader = SampleReader(settings.source, decoder, settings.sound)
        self._resize = RESIZERS[settings.pipeline.resample]
        self.repaired: dict[int, BadSample] = {}
        self._keys: npt.NDArray[np.int64] | None = None

    @property
    def read_s(self) -> float:
        """Seconds of the latest batch that were spent inside the source."""
        return self._reader.read_s

    def fill(
        self,
        epoch: int,
        index: npt.NDArray[np.int64],
        wanted: npt.NDArray[np.intp],
        pixels: npt.NDArray[np.uint8],
        rows: npt.NDArray[np.void],
        working_on: Callable[[int], None],
        keys: npt.NDArray[np.int64] | None = None,
    ) -> dict[int, BadSample]:
        """Fill the rows `wanted` of a batch, and return the bad samples among them by row.

        index: int64 [batch], the sample of each row; pixels, rows and working_on: as Producer.produce takes them; keys:
        numbers by which the rows are drawn, int64 [batch], None for their samples.
        """
        self._reader.read_s, self.repaired, self._keys = 0.0, {}, keys
        self._reader.will_need(index[wanted])
        bad: dict[int, BadSample] = {}
        loaded: dict[int, Loaded] = {}
        for row, sample in zip(wanted.tolist(), index[wanted].tolist(), strict=True):
            working_on(sample)
            try:
                loaded[row] = self._reader.load(sample)
            except LoaderError as error:
                bad[row] = self._bad(row, sample, error)
        plan = self._plan(epoch, loaded) if loaded else None
        for place, (row, item) in enumerate(loaded.items()):
            assert plan is not None
            working_on(item.sample)
            try:
                self._fill_row(row, item, plan, place, pixels, rows)
            except LoaderError as error:
                bad[row] = self._bad(row, item.sample, error)
        for row, entry in bad.items():
            bad[row] = self._replace(epoch, entry, pixels, rows, working_on)
        return bad

    def _plan(self, epoch: int, loaded: dict[int, Loaded]) -> BatchPlan:
        """Draw crops and flips of samples by row."""
        numbers = np.array([(item.sample, item.width, item.height) for item in loaded.values()], np.int64)
        if self._keys is not None:
            numbers[:, 0] = self._keys[list(loaded)]
        schedule = self._settings.schedule
        return plan_batch(self._settings.pipeline, schedule.seed, epoch, numbers[:, 0], numbers[:, 1], numbers[:, 2])

    def _fill_row(
        self,
        row: int,
        item: Loaded,
        plan: BatchPlan,
        place: int,
        pixels: npt.NDArray[np.uint8],
        rows: npt.NDArray[np.void],
    ) -> None:
        """Write a sample, whose crop and flip are at `place` of `plan`, to its row."""
        self._write(row, item, tuple(plan.windows[place].tolist()), bool(plan.flips[place]), pixels)
        rows[row] = (item.sample, -1, plan.windows[place], plan.flips[place])

    def _write(self, row: int, item: Loaded, window: Window, flip: bool, pixels: npt.NDArray[np.uint8]) -> None:
        """Decode and resize `window` of a sample, and write it to its row of `pixels`."""
        crop = self._reader.crop(item, window)
        if self._reader.repair:
            self._note_repair(row, item.sample)
        write_sample(crop, torch.from_numpy(pixels[row : row + 1]).permute(0, 3, 1, 2), flip, self._resize)

    def _note_repair(self, row: int, sample: int) -> None:
        error = LoaderError("E-REPAIRED", f"libjpeg repaired it: {self._reader.repair}")
        if self._settings.on_repaired != "count":
            raise error
        self.repaired[row] = self._bad(row, sample, error)._replace(substitute=sample)

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
        pixels: npt.NDArray[np.uint8],
        rows: npt.NDArray[np.void],
        working_on: Callable[[int], None],
    ) -> BadSample:
        """Fill the row of a bad sample with the next good sample of the data set, or with padding."""
        row, n = entry.row, len(self._settings.source)
        if self._settings.substitute and not self._settings.evaluation:
            for distance in range(1, min(_MAX_SUBSTITUTES, n)):
                candidate = (entry.sample + distance) % n
                working_on(candidate)
                try:
                    item = self._reader.load(candidate)
                    self._fill_row(row, item, self._plan(epoch, {row: item}), 0, pixels, rows)
                except LoaderError as error:
                    self._bad(row, candidate, error)
                    continue
                return entry._replace(substitute=candidate)
        pad_rows(row, pixels, rows)
        return entry


def pad_rows(which: int | npt.NDArray[np.intp], pixels: npt.NDArray[np.uint8], rows: npt.NDArray[np.void]) -> None:
    """Make rows padding: black, with index and label -1."""
    pixels[which] = 0
    rows[which] = (-1, -1, (0, 0, 0, 0), False)
