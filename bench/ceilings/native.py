"""NativeCeiling measures the native library as DecodeCeiling does other decoders: on one thread, with nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import cycle

import numpy as np

from penstock.bench.ceilings.decode import STEP, DecodeCeiling, on_one_thread
from penstock.bench.measure.clock import Rate
from penstock.loaders.engine.native_rows import native_rows
from penstock.loaders.engine.sample_reader import Loaded
from penstock.loaders.sources.contract import Source
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Pixels
from penstock.pipelines.plan.crops import plan_batch
from penstock.pipelines.sample.decode import NATIVE
from penstock.pipelines.spec import ImagePipeline


class NativeCeiling(DecodeCeiling):
    """Measures the native library; what it leaves to the Python path is left out.

    It reads the images itself, from the page cache: that is part of the work. Raises LoaderError E-DEPENDENCY where it
    is not built, E-MISUSE for data or settings that are not its own.
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
        self._images = np.empty((STEP, *pipeline.size, 3), np.uint8)
        self._epoch = 0

    def measure(self, seconds: float, *, resize: bool = True) -> Rate:
        """Measure images/s on one thread; without `resize`, of reading and decoding alone (the same windows)."""
        samples = np.array([item.sample for item in self._samples], np.int64)
        images = self._images if resize else None
        batches = cycle([samples[first : first + STEP] for first in range(0, len(samples), STEP)])

        def step() -> int:
            batch = next(batches)
            self._epoch += 1
            plan = partial(plan_batch, self._pipeline, self._seed, self._epoch)
            rows = self._rows.fill(batch, np.arange(len(batch)), plan, images)
            return 0 if rows is None else len(rows)

        return on_one_thread(step, seconds)

    def decode(self, seconds: float) -> Rate:
        """Measure images/s of reading and decoding alone on one thread."""
        return self.measure(seconds, resize=False)

    def _write(self, pixels: Pixels, flip: bool) -> None:
        self._rows.stage.resize(pixels, flip, self._images[0])
