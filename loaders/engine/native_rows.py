"""NativeRows has the native library fill the rows of a batch that it can; the others are left to the Python path."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from penstock.loaders.sources.contract import LocatedSource, Source
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.native.library import native_library
from penstock.pipelines.native.rows import ROW, NativeStage, Progress, Rows, upright_sizes
from penstock.pipelines.plan.crops import BatchPlan
from penstock.pipelines.spec import ImagePipeline

# (samples, widths, heights), int64 [n] each -> their crops and flips.
Plan = Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]], BatchPlan]
_READING = ("read", "path", "stored_size", "read_window")  # methods on which it depends what is read
NATIVE_DECODERS = ("auto", "native")  # values of `decoder` that leave ordinary JPEGs to the native library


class NativeRows:
    """Fill rows by the native library; belongs to one thread.

    Attributes:
        stage: the library's calls.
        read_s: seconds of the latest batch that were spent reading.
    """

    def __init__(self, source: LocatedSource, stage: NativeStage) -> None:
        self._source, self.stage = source, stage
        self.read_s = 0.0

    def fill(
        self,
        samples: npt.NDArray[np.int64],
        places: npt.NDArray[np.intp],
        plan: Plan,
        images: npt.NDArray[np.uint8] | None,
        progress: Progress | None = None,
    ) -> Rows | None:
        """Write the pixels of `samples` (int64 [n]) to the rows `places` of `images`, uint8 [batch, h, w, 3].

        Without `images` they are decoded and not resized, which is of use for measuring alone.
        Returns what was filled: ROW [m], with `sample`, `row`, `window` and `flip`; None if the batch is not wanted any
        more.
        """
        rows, wanted = self._load(samples, places, progress)
        if wanted and len(rows):
            drawn = plan(rows["sample"].astype(np.int64), *upright_sizes(rows))
            rows["window"], rows["flip"] = drawn.windows, drawn.flips
            wanted = self.stage.fill(rows, images)
        self.read_s = self.stage.read_s
        return rows[rows["result"] == 0] if wanted else None

    def takes(self, samples: npt.NDArray[np.int64]) -> int:
        """Count those of `samples` (int64 [n]) whose images the library can make, as far as their headers tell."""
        return len(self._load(samples, np.zeros(len(samples), np.intp), None)[0])

    def _load(
        self, samples: npt.NDArray[np.int64], places: npt.NDArray[np.intp], progress: Progress | None
    ) -> tuple[Rows, bool]:
        """Return the rows that were loaded, and whether the batch is still wanted."""
        rows = np.zeros(len(samples), ROW)
        rows["sample"], rows["row"] = samples, places
        try:
            names = self._source.locate(samples, rows)
        except LoaderError:  # a cache that was replaced: the Python path says of which sample
            return rows[:0], True
        wanted = self.stage.load(rows, names, progress)
        return rows[rows["result"] == 0], wanted


def native_rows(source: Source, pipeline: ImagePipeline, decoder: str) -> NativeRows | None:
    """Return what fills rows natively; None where the library, the source, decoder or resampling rules that out."""
    library = native_library()
    if library is None or decoder not in NATIVE_DECODERS or pipeline.resample != "torch" or not is_located(source):
        return None
    assert isinstance(source, LocatedSource)
    return NativeRows(
        source, NativeStage(library, pipeline.size, pipeline.max_pixels, apply_exif=pipeline.exif == "apply")
    )


def is_located(source: Source) -> bool:
    """Say whether `source` tells where its images lie, and reads them in no way of its own, as a subclass may."""
    if not isinstance(source, LocatedSource) or not getattr(source, "locates", True):
        return False  # one that wraps another says by `locates` whether that one does
    own = [getattr(source, "__dict__", {}), *map(vars, type(source).__mro__)]  # what comes first counts
    located = next(at for at, names in enumerate(own) if "locate" in names)
    return not any(name in names for names in own[:located] for name in _READING)
