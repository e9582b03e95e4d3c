"""One way of loading the data, and how it is opened, for comparison in a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.bench.probe.ceilings.remote_data import fetched_apart
from penstock.bench.probe.data.wrapped_sources import repeat_source
from penstock.bench.record.bench_record import DTYPES, KnobValue, Options
from penstock.bench.record.settings import BenchSettings
from penstock.loaders.cache_build.open_or_build import prepare_whole
from penstock.loaders.data.remote.remote_source import REMOTE_OPTIONS
from penstock.loaders.data.sources.contract import Source, is_cache
from penstock.loaders.data.sources.data import images_of
from penstock.loaders.front.create import create_loader
from penstock.loaders.front.loader import Loader
from penstock.loaders.front.open_source import open_source
from penstock.loaders.make.native_rows import NATIVE_DECODERS
from penstock.pipelines.native.library import native_library
from penstock.pipelines.spec import ImagePipeline, imagenet_train


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Describe one way of loading the data.

    Attributes:
        dtype: dtype of the batches, one of DTYPES.
        cached: whether it reads the cache.
        options: further arguments of create_loader, including those for remote data.
    """

    backend: str
    decoder: str = "auto"
    dtype: str = "float32"
    cached: bool = False
    options: Options = field(default_factory=dict)

    def option(self, name: str) -> KnobValue:
        """Return the value of an option or of "decoder"; None if it is not set."""
        return self.decoder if name == "decoder" else self.options.get(name)

    def with_option(self, name: str, value: KnobValue) -> Candidate:
        """Return a copy with another value of an option or of "decoder"."""
        if name == "decoder":
            return replace(self, decoder=str(value))
        return replace(self, options={**self.options, name: value})

    @property
    def workers(self) -> int:
        """Return the number of worker threads or processes; 0 if the options do not give one."""
        return int(self.options.get("workers") or 0)

    @property
    def has_processes(self) -> bool:
        """Return whether its workers are processes."""
        kind = self.options.get("workers_are", "auto")
        if kind == "auto" and self.decoder in NATIVE_DECODERS and native_library() is not None:
            kind = "threads"
        return bool(self.workers) and self.backend != "dali" and kind != "threads"

    def describe(self) -> str:
        """Describe the candidate in a few words, for tables and progress displays."""
        options = [f"{name} {value}" for name, value in self.options.items() if value is not None]
        read = "cache" if self.cached else "files"
        decoder = [] if self.decoder == "auto" else [self.decoder]
        return ", ".join([f"{self.backend} of the {read}", *decoder, *options])


class LoaderOpener:
    """Opens candidates over the same data: each serves the same stream in the same batches.

    data: the data, which may be a cache itself. cache: the cache of the data, or None.
    """

    def __init__(self, settings: BenchSettings, pipeline: ImagePipeline, data: Source, cache: Source | None) -> None:
        self.settings, self.pipeline = settings, pipeline
        is_stored = is_cache(data)
        self._sources = {False: None if is_stored else data, True: data if is_stored else cache}

    @property
    def classes(self) -> Sequence[bytes]:
        """Return the class names of the data."""
        return self.source(cached=not self.has(cached=False)).classes

    def has(self, *, cached: bool) -> bool:
        """Return whether there is a cache, or, for cached=False, whether there are files."""
        return self._sources[cached] is not None

    def source(self, *, cached: bool) -> Source:
        """Return the source that candidates read. Raises ValueError if it does not exist."""
        found = self._sources[cached]
        if found is None:
            raise ValueError("no cache: pass --cache" if cached else "no files: DATA is a cache")
        return found

    def open(self, candidate: Candidate) -> Loader:
        """Open a loader that replaces bad samples and has its own fetcher. Raises as create_loader does."""
        options: dict[str, Any] = dict(candidate.options)
        of_remote = {name: options.pop(name) for name in REMOTE_OPTIONS if name in options}
        source = fetched_apart(self.source(cached=candidate.cached), **of_remote)
        return create_loader(
            source,
            backend=candidate.backend,
            pipeline=self.pipeline,
            batch_size=self.settings.batch_size,
            device=self.settings.device,
            dtype=DTYPES[candidate.dtype],
            seed=self.settings.seed,
            decoder=candidate.decoder,
            on_bad_sample="replace",
            max_bad=self.settings.max_bad,
            **options,
        )


class BenchData:
    """Opens the data of a benchmark and its cache, both repeated or cut to `settings.entries` if that is given.

    Builds a missing cache. Raises ValueError for too few images, and as open_source and prepare_whole do.

    Attributes:
        plain: `source` at the requested length.
        opener: opens loaders over the data and its cache.
    """

    def __init__(self, data: Any, settings: BenchSettings) -> None:
        self._entries = settings.entries
        self.source: Source = images_of(open_source(data, **settings.data_options))
        self.plain = self._at_length(self.source)
        self.pipeline: ImagePipeline = imagenet_train(settings.size, interpolation=settings.interpolation)
        if len(self.plain) < settings.batch_size:
            raise ValueError(
                f"{len(self.plain)} images do not fill a batch of {settings.batch_size}: pass a smaller --batch-size"
            )
        cache = None if settings.cache is None else self._at_length(prepare_whole(self.source, settings.cache))
        self.opener = LoaderOpener(settings, self.pipeline, self.plain, cache)

    def _at_length(self, source: Source) -> Source:
        return source if self._entries is None else repeat_source(source, self._entries)
