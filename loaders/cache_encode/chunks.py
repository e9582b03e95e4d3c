"""Encodes runs of samples as a cache stores them: what one worker does at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.cache.format import RECORD
from penstock.loaders.cache_encode.encode import Stored, mask_as_file
from penstock.loaders.sources.contract import Source, has_fields, is_fetching
from penstock.loaders.sources.source_faults import call_source, name_sample
from penstock.loaders.system.machine import oom_kills
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.fields.masks import encode_mask

MAX_CHUNK_SAMPLES = 64
CHUNK_BYTES = 4 << 20  # size of a chunk to aim at, once the mean size of the images is known
FIRST_CHUNK_SAMPLES = 4  # samples of a chunk until then


class Task(NamedTuple):
    """Name samples to encode: the first, and the one after the last."""

    first: int
    end: int


@dataclass
class Chunk:
    """Hold encoded samples.

    Attributes:
        task: which samples.
        records: RECORD [n] with offset 0, each sample's followed by those of its masks.
        payload: their bytes, one after another.
        source_bytes: what was read for them.
        kept: reason -> how many JPEGs are stored as they were.
        bad: error code -> number of images that no decoder can decode; they are stored as they are.
    """

    task: Task
    records: npt.NDArray[np.void]
    payload: bytes
    source_bytes: int
    kept: dict[str, int]
    bad: dict[str, int]


class ChunkCutter:
    """Cut samples into tasks of about CHUNK_BYTES, by the mean size of those that are done."""

    def __init__(self, first: int, end: int) -> None:
        self.next, self.end = first, end
        self._samples = self._bytes = 0

    def tasks(self) -> Iterator[Task]:
        """Yield tasks until all samples are handed out; each is cut when it is asked for."""
        while self.next < self.end:
            yield self.cut()

    def learn(self, chunk: Chunk) -> None:
        """Take a chunk into account."""
        self._samples += chunk.task.end - chunk.task.first
        self._bytes += max(len(chunk.payload), chunk.source_bytes)

    def cut(self) -> Task:
        """Cut the next task."""
        count = FIRST_CHUNK_SAMPLES
        if self._samples:
            count = int(max(1, min(MAX_CHUNK_SAMPLES, CHUNK_BYTES * self._samples // max(1, self._bytes))))
        task = Task(self.next, min(self.next + count, self.end))
        self.next = task.end
        return task


def encode_chunk(source: Source, encoder: Any, task: Task, working_on: Callable[[int], None]) -> Chunk:
    """Encode a task's samples; calls `working_on(sample)` before each. Raises what source and encoder do, or E-OOM."""
    indices = np.arange(*task, dtype=np.int64)
    masks = mask_names(source)
    chunk = Chunk(task, np.zeros(len(indices) * (1 + len(masks)), RECORD), b"", 0, {}, {})
    parts: list[Stored] = []
    kills = oom_kills()
    if is_fetching(source):
        source.announce(indices)
    for sample, label in zip(indices.tolist(), source.labels(indices).tolist(), strict=True):
        working_on(sample)
        try:
            data = call_source(source.read, sample)
            stored = encoder.encode(data, label)
            files = [encode_mask_of(source, name, sample) for name in masks]
        except LoaderError as error:
            if error.code == "E-WORKER" and oom_kills() > kills:
                raise LoaderError("E-OOM", f"{error.cause}: out of memory", sample=sample) from error
            raise error.locate(sample=sample, path=name_sample(source, sample)) from error
        chunk.source_bytes += len(data) if isinstance(data, bytes) else data.nbytes
        chunk.source_bytes += sum(len(file.data) for file in files)
        parts += [stored, *files]
        if stored.kept:
            chunk.kept[stored.kept] = chunk.kept.get(stored.kept, 0) + 1
        if stored.bad:
            chunk.bad[stored.bad] = chunk.bad.get(stored.bad, 0) + 1
    for row, part in enumerate(parts):
        chunk.records[row] = part.record
    chunk.payload = b"".join(part.data for part in parts)
    return chunk


def mask_names(source: Source) -> list[str]:
    """Return the names of the fields of `source` that are masks."""
    return [name for name, kind in source.field_kinds.items() if kind.kind == "mask"] if has_fields(source) else []


def encode_mask_of(source: Source, name: str, sample: int) -> Stored:
    """Return a mask as a cache stores it: a file as it is, an array as a file. Raises LoaderError."""
    assert has_fields(source)
    mask = call_source(source.mask, name, sample)
    return mask_as_file(mask if isinstance(mask, bytes) else encode_mask(mask))
