"""Encodes the images of a source for a cache in worker processes, and yields them in the order of the source."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

from penstock.loaders.cache.format import Encoding
from penstock.loaders.cache_encode.chunks import FIRST_CHUNK_SAMPLES, Chunk, ChunkCutter, Task, encode_chunk
from penstock.loaders.cache_encode.encode import SampleEncoder
from penstock.loaders.sources.contract import Source
from penstock.loaders.workers.pool import map_in_workers


def encode_in_order(
    source: Source, encoding: Encoding, first: int, end: int, workers: int
) -> Generator[Chunk, None, None]:
    """Encode samples `first` to `end` (excluded) in chunks, in order, by `workers` processes or, if 0, in this one.

    How they are cut into chunks differs from run to run; their bytes do not. Close the iterator to end the workers.
    Raises what the source raises (LoaderError, with `sample`); LoaderError E-WORKER, E-OOM, E-TIMEOUT for a worker
    that died or hangs.
    """
    workers = min(workers, -(-(end - first) // FIRST_CHUNK_SAMPLES))
    cutter = ChunkCutter(first, end)
    encoder = ChunkEncoder(source, encoding)
    with contextlib.closing(map_in_workers(encoder, cutter.tasks(), workers, source=source)) as chunks:
        for chunk in chunks:
            cutter.learn(chunk)
            yield chunk


class ChunkEncoder:
    """Encodes tasks one after another, in the process that it is sent to."""

    def __init__(self, source: Source, encoding: Encoding) -> None:
        self._source, self._encoding = source, encoding
        self._encoder: SampleEncoder | None = None  # made at the first task, since decoders do not pickle

    def __call__(self, task: Task, working_on: Callable[[int], None]) -> Chunk:
        self._encoder = self._encoder or SampleEncoder(self._encoding)
        return encode_chunk(self._source, self._encoder, task, working_on)
