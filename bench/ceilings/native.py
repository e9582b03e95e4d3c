"""NativeCeiling measures the native library as DecodeCeiling does other decoders: on one thread, with nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.bench.ceilings.decode import STEP, DecodeCeiling, on_one_thread
from penstock.bench.measure.clock import Rate
from penstock.loaders.engine.work import BATCH_ROW
from penstock.loaders.rows.layout import Slot, image_layout
from penstock.loaders.rows.native_rows import native_rows, plan_images
from penstock.loaders.rows.sample_reader import Loaded
from penstock.loaders.sources.contract import Source
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Pixels
from penstock.pipelines.plan.crops import plan_batch
from penstock.pipelines.sample.decode import NATIVE
from penstock.pipelines.spec import ImagePipeline


class NativeCeiling(DecodeCeiling):
    """Measures the native library, and the Python path for the images that the library leaves to it, as a loader does.

    Both read the images from the page cache: that is part of the work. Bad samples are left out. Raises LoaderError
    E-DEPENDENCY where the library is not built, E-MISUSE for data or settings that are not its own.
    """

    def __init__(
        self, source: Source, pipeline: ImagePipeline, seed: int, samples: Sequence[Loaded] | None = None
    ) -> None:
        super().__init__(source, pipeline, NATIVE, seed, samples)
        rows = native_rows(source, pipeline, NATIVE)
        if rows is None:
            cause = "the native library reads plain files, records and caches, and resizes as resample='torch' does"
            raise LoaderError("E-MISUSE", cause, fix="name another decoder, or 'auto'")
        self.name, self._rows = NATIVE, rows
        layout = image_layout((pipeline,), STEP)
        memory = np.empty(layout.num_bytes, np.uint8)
        self._output = Slot(layout, memory, np.zeros(STEP, BATCH_ROW))
        self._epoch = self._first = 0

    def measure(self, seconds: float, *, resize: bool = True) -> Rate:
        """Measure images/s on one thread; without `resize`, of reading and decoding alone (the same windows)."""

        def step() -> int:
            batch = self._samples[self._first : self._first + STEP]
            self._first = self._first + STEP if self._first + STEP < len(self._samples) else 0
            self._epoch += 1
            plan = plan_images((self._pipeline,), self._seed, self._epoch, self._output.layout)
            samples = np.array([item.sample for item in batch], np.int64)
            rows = self._rows.fill(samples, np.arange(len(batch)), plan, self._output, draws=resize)
            filled = set() if rows is None else set(samples[rows].tolist())
            left = [item for item in batch if item.sample not in filled]
            return len(filled) + sum([self._make_in_python(item, resize) for item in left])

        return on_one_thread(step, seconds)

    def _make_in_python(self, item: Loaded, resize: bool) -> bool:
        """Make one image as a loader does where the library does not; False for a bad one, which is then left out."""
        try:
            loaded = self._reader.load(item.sample)
            sides = [np.array([side], np.int64) for side in (loaded.sample, loaded.width, loaded.height)]
            plan = plan_batch(self._pipeline, self._seed, self._epoch, *sides)
            pixels = self._reader.crop(loaded, tuple(plan.windows[0].tolist()))
        except LoaderError:
            self._samples = [sample for sample in self._samples if sample is not item]
            self._ensure_samples()
            return False
        if resize:
            super()._write(pixels, bool(plan.flips[0]))
        return True

    def decode(self, seconds: float) -> Rate:
        """Measure images/s of reading and decoding alone on one thread."""
        return self.measure(seconds, resize=False)

    def _write(self, pixels: Pixels, flip: bool) -> None:
        self._rows.stage.resize(pixels, flip, self._output.images[0][0])
