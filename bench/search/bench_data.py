"""The data of a benchmark: as they are, as their cache, at the length asked for, and who opens loaders over them."""

from __future__ import annotations

from typing import Any

from penstock.bench.data.wrapped_sources import repeated
from penstock.bench.record.record import BenchSettings
from penstock.bench.search.candidate import LoaderOpener
from penstock.loaders.cache_build.for_source import prepare_source
from penstock.loaders.open_source import open_source
from penstock.loaders.sources.contract import Source
from penstock.pipelines.spec import ImagePipeline, imagenet_train


class BenchData:
    """source: the data; plain: the same at the length asked for; opener: of loaders over them and their cache.

    Builds the cache if it is not there. Raises ValueError for too few images, and as open_source and prepare_source do.
    """

    def __init__(self, data: Any, settings: BenchSettings) -> None:
        self._entries = settings.entries
        self.source: Source = open_source(data)
        self.plain = self._at_length(self.source)
        self.pipeline: ImagePipeline = imagenet_train(settings.size)
        if len(self.plain) < settings.batch_size:
            raise ValueError(
                f"{len(self.plain)} images do not fill a batch of {settings.batch_size}: pass a smaller --batch-size"
            )
        cache = None if settings.cache is None else self._at_length(prepare_source(self.source, settings.cache))
        self.opener = LoaderOpener(settings, self.pipeline, self.plain, cache)

    def _at_length(self, source: Source) -> Source:
        return source if self._entries is None else repeated(source, self._entries)
