"""Encodes runs of samples for a cache in worker processes, and yields them in the order of the source."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.cache_build.encode import SampleEncoder, Stored, field_as_file
from penstock.loaders.data.cache.format import RECORD, Encoding
from penstock.loaders.data.sources.contract import Source, field_kinds_of, has_fields, is_fetching
from penstock.loaders.data.sources.source_faults import call_source, name_sample
from penstock.loaders.run.workers.pool import map_in_workers
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.fields.field_kinds import pictures_of
from penstock.pipelines.fields.masks import encode_mask
from penstock.pipelines.sample.decode_bands import pack_array

MAX_CHUNK_SAMPLES = 64
CHUNK_BYTES = 4 << 20  # target size of a chunk, once the mean size of the images is known
FIRST_CHUNK_SAMPLES = 4  # samples per chunk until then


class Task(NamedTuple):
    """The samples to encode: the first, and the one after the last."""

    first: int
    end: int


@dataclass
class Chunk:
    """Encoded samples.

    Attributes:
        task: the encoded samples.
        records: RECORD [n] with offset 0; each sample's record is followed by those of its masks and image targets.
        payload: the stored bytes, concatenated.
        source_bytes: number of bytes read from the source.
        kept: reason -> number of JPEGs stored unchanged.
        bad: error code -> number of images that no decoder can decode; they are stored unchanged.
    """

    task: Task
    records: npt.NDArray[np.void]
    payload: bytes
    source_bytes: int
    kept: dict[str, int]
    bad: dict[str, int]


class ChunkEncoder:
    """Encodes tasks in the process that it is sent to."""

    def __init__(self, source: Source, encoding: Encoding) -> None:
        self._source, self._encoding = source, encoding
        self._encoder: SampleEncoder | None = None  # made at the first task, since decoders do not pickle

    def __call__(self, task: Task, working_on: Callable[[int], None]) -> Chunk:
        """Encode a task's samples; calls `working_on(sample)` before each. Raises as source and encoder do."""
        source, encoder = self._source, self._encoder or SampleEncoder(self._encoding)
        self._encoder = encoder
        indices, pictures = np.arange(*task, dtype=np.int64), picture_names(source)
        parts: list[Stored] = []
        kept: Counter[str] = Counter()
        bad: Counter[str] = Counter()
        source_bytes = 0
        if is_fetching(source):
            source.announce(indices)
        for sample, label in zip(indices.tolist(), source.labels(indices).tolist(), strict=True):
            working_on(sample)
            try:
                data = call_source(source.read, sample)
                stored = encoder.encode(data, label)
                files = [_encode_picture(source, name, sample) for name in pictures]
            except LoaderError as error:
                raise error.locate(sample=sample, path=name_sample(source, sample)) from error
            source_bytes += len(data) if isinstance(data, bytes) else data.nbytes
            source_bytes += sum(len(file.data) for file in files)
            parts += [stored, *files]
            kept.update([stored.kept] if stored.kept else [])
            bad.update([stored.bad] if stored.bad else [])
        records = np.array([part.record for part in parts], RECORD)
        return Chunk(task, records, b"".join(part.data for part in parts), source_bytes, dict(kept), dict(bad))


def picture_names(source: Source) -> list[str]:
    """Return the names of the masks and image targets of `source`."""
    return list(pictures_of(field_kinds_of(source)))


def _encode_picture(source: Source, name: str, sample: int) -> Stored:
    """Return a picture as a cache stores it: a file unchanged, an array encoded as a file. Raises LoaderError."""
    assert has_fields(source)
    picture = call_source(source.mask, name, sample)
    if not isinstance(picture, bytes):
        picture = encode_mask(picture) if source.field_kinds[name].kind == "mask" else pack_array(picture)
    return field_as_file(picture)


def encode_in_order(
    source: Source, encoding: Encoding, first: int, end: int, workers: int
) -> Generator[Chunk, None, None]:
    """Encode samples `first` to `end` (excluded) in chunks, in order, by `workers` processes or, if 0, in this one.

    A chunk has about CHUNK_BYTES, by the mean size of the finished samples. The cuts between chunks differ from run to
    run; the bytes do not. Close the iterator to end the workers. Raises what the source raises (LoaderError, with
    `sample`); LoaderError E-WORKER, E-OOM, E-TIMEOUT for a worker that died or hangs.
    """
    num_samples = num_bytes = 0

    def cut() -> Iterator[Task]:
        start = first
        while start < end:
            most = CHUNK_BYTES * num_samples // max(1, num_bytes) if num_samples else FIRST_CHUNK_SAMPLES
            task = Task(start, min(start + max(1, min(MAX_CHUNK_SAMPLES, most)), end))
            start = task.end
            yield task

    workers = min(workers, -(-(end - first) // FIRST_CHUNK_SAMPLES))
    with contextlib.closing(map_in_workers(ChunkEncoder(source, encoding), cut(), workers, source=source)) as chunks:
        for chunk in chunks:
            num_samples += chunk.task.end - chunk.task.first
            num_bytes += max(len(chunk.payload), chunk.source_bytes)
            yield chunk
