"""One way of loading the data, and how it is opened: what a benchmark compares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.bench.record import DTYPES, BenchSettings
from penstock.bench.tuning import Options
from penstock.loaders.create import create_loader
from penstock.loaders.loader import Loader
from penstock.loaders.source import Source
from penstock.pipelines.spec import ImagePipeline


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """backend, decoder and dtype as create_loader takes them, its options, and whether it reads the cache."""

    backend: str
    decoder: str = "auto"
    dtype: str = "float32"
    cached: bool = False
    options: Options = field(default_factory=dict)

    def describe(self) -> str:
        """In a few words, for tables and progress displays."""
        knobs = [f"{knob} {value}" for knob, value in self.options.items() if value is not None]
        read = "cache" if self.cached else "files"
        return ", ".join([f"{self.backend} of the {read}", *([] if self.decoder == "auto" else [self.decoder]), *knobs])


class LoaderOpener:
    """Opens candidates over the same data: the same stream in the same batches, whichever it is.

    files: the data as it is; cache: its cache, None where there is none.
    """

    def __init__(self, settings: BenchSettings, pipeline: ImagePipeline, files: Source, cache: Source | None) -> None:
        self._settings, self._pipeline = settings, pipeline
        self._sources = {False: files, True: cache}

    def open(self, candidate: Candidate) -> Loader:
        """A loader; bad samples are replaced. Raises ValueError for a cache that is not there, and as create_loader."""
        source = self._sources[candidate.cached]
        if source is None:
            raise ValueError(f"there is no cache for {candidate.describe()}: pass --cache")
        options: dict[str, Any] = dict(candidate.options)
        return create_loader(
            source,
            backend=candidate.backend,
            pipeline=self._pipeline,
            batch_size=self._settings.batch_size,
            device=self._settings.device,
            dtype=DTYPES[candidate.dtype],
            seed=self._settings.seed,
            decoder=candidate.decoder,
            on_bad_sample="replace",
            **options,
        )
