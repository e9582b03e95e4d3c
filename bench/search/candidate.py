"""One way of loading the data, and how it is opened: what a benchmark compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.bench.record.record import DTYPES, BenchSettings, KnobValue, Options
from penstock.loaders.create import create_loader
from penstock.loaders.loader import Loader
from penstock.loaders.sources.contract import Source, WindowSource
from penstock.pipelines.spec import ImagePipeline


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """backend, decoder and dtype as create_loader takes them, its options, and whether it reads the cache."""

    backend: str
    decoder: str = "auto"
    dtype: str = "float32"
    cached: bool = False
    options: Options = field(default_factory=dict)

    def knob(self, name: str) -> KnobValue:
        """The value of one of the options, or the "decoder"; None for what it does not have."""
        return self.decoder if name == "decoder" else self.options.get(name)

    def with_knob(self, name: str, value: KnobValue) -> Candidate:
        """The same with another value of one of them."""
        if name == "decoder":
            return replace(self, decoder=str(value))
        return replace(self, options={**self.options, name: value})

    @property
    def workers(self) -> int:
        """Threads or processes beside the consumer."""
        return int(self.options.get("workers") or 0)

    @property
    def forks(self) -> bool:
        """Whether its workers are processes."""
        return bool(self.workers) and self.backend != "dali" and self.options.get("workers_are") != "threads"

    def describe(self) -> str:
        """In a few words, for tables and progress displays."""
        knobs = [f"{knob} {value}" for knob, value in self.options.items() if value is not None]
        read = "cache" if self.cached else "files"
        return ", ".join([f"{self.backend} of the {read}", *([] if self.decoder == "auto" else [self.decoder]), *knobs])


class LoaderOpener:
    """Opens candidates over the same data: the same stream in the same batches, whichever it is.

    data: the data as it is, which may be a cache itself; cache: its cache, None where there is none.
    """

    def __init__(self, settings: BenchSettings, pipeline: ImagePipeline, data: Source, cache: Source | None) -> None:
        self._settings, self._pipeline = settings, pipeline
        is_cache = isinstance(data, WindowSource)
        self._sources = {False: None if is_cache else data, True: data if is_cache else cache}

    @property
    def classes(self) -> Sequence[bytes]:
        """Of the data."""
        return self.source(cached=not self.has(cached=False)).classes

    def has(self, *, cached: bool) -> bool:
        """Whether there is a cache, or else whether there is anything but a cache."""
        return self._sources[cached] is not None

    def source(self, *, cached: bool) -> Source:
        """What candidates read. Raises ValueError for what is not there."""
        found = self._sources[cached]
        if found is None:
            raise ValueError("there is no cache: pass --cache" if cached else "there are no files: DATA is a cache")
        return found

    def open(self, candidate: Candidate) -> Loader:
        """A loader; bad samples are replaced. Raises ValueError for data that are not there, and as create_loader."""
        source = self.source(cached=candidate.cached)
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
