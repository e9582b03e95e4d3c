"""Ceilings: what one part of the loader could do if it had the machine to itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import torch

from penstock.bench.measure import Rate, measure_rate
from penstock.loaders.source import Source, WindowSource
from penstock.pipelines.batch import BatchStage
from penstock.pipelines.decode import DECODER_NAMES, ImageDecoder, Pixels, Probe, choose_jpeg_decoder
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.orientation import stored_window
from penstock.pipelines.plan import plan_batch
from penstock.pipelines.resample import RESIZERS, write_sample
from penstock.pipelines.spec import ImagePipeline

_MAX_SAMPLES = 256  # enough for stable statistics, few enough to hold in memory


class DecodeCeiling:
    """Decode and resize on one thread, of files already in memory, with the crops of the real stream.

    A loader cannot be faster than this times its processors. Bad samples are left out. Of a cache it is the crop's part
    that is decoded, and reading it (from the page cache, CRC and all) is part of the work.
    """

    def __init__(self, source: Source, pipeline: ImagePipeline, decoder: str, seed: int) -> None:
        self._windows = source if isinstance(source, WindowSource) else None
        self._decoder = ImageDecoder(pipeline, decoder)
        self.name = self._decoder.name
        self._pipeline, self._seed = pipeline, seed
        self._samples = list(_readable(source, self._decoder))
        if not self._samples:
            raise LoaderError("E-NODATA", "none of the samples tried can be decoded")
        height, width = pipeline.size
        self._slot = torch.empty(1, height, width, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
        self._resize = RESIZERS[pipeline.resample]

    @property
    def largest(self) -> tuple[int, int]:
        """Width and height of the image with the most pixels, of those tried."""
        return max((size for *_, size in self._samples), key=lambda size: size[0] * size[1])

    def measure(self, seconds: float, *, resize: bool = True) -> Rate:
        """Images per second on one thread; without `resize`, of decoding alone (the same windows)."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        epochs = count()
        try:
            return measure_rate(lambda: self._epoch(next(epochs), resize), seconds=seconds)
        finally:
            torch.set_num_threads(threads)

    def _epoch(self, epoch: int, resize: bool) -> int:
        numbers = np.array([(index, *size) for index, _, _, size in self._samples], np.int64)
        plan = plan_batch(self._pipeline, self._seed, epoch, numbers[:, 0], numbers[:, 1], numbers[:, 2])
        for (index, data, probe, _), window, flip in zip(self._samples, plan.windows.tolist(), plan.flips, strict=True):
            x, y, w, h = window
            if data is None:
                assert self._windows is not None
                assert probe is not None
                stored = stored_window((x, y, w, h), probe.width, probe.height, probe.orientation)
                pixels = self._decoder.part(self._windows.read_window(index, stored), probe, stored)
            elif probe is None:
                assert isinstance(data, np.ndarray)
                pixels = data[y : y + h, x : x + w]
            else:
                assert isinstance(data, bytes)
                pixels = self._decoder.window(data, probe, (x, y, w, h))
            if resize:
                write_sample(pixels, self._slot, bool(flip), self._resize)
        return len(self._samples)


_Sample = tuple[int, "bytes | Pixels | None", "Probe | None", tuple[int, int]]


def _readable(source: Source, decoder: ImageDecoder) -> Iterator[_Sample]:
    stride = max(1, len(source) // _MAX_SAMPLES)
    for index in range(0, len(source), stride)[:_MAX_SAMPLES]:
        try:
            size = source.stored_size(index) if isinstance(source, WindowSource) else None
            if size is not None:
                known = decoder.stored(size)
                yield index, None, known, (known.width, known.height)
                continue
            data = source.read(index)
            if isinstance(data, np.ndarray):
                yield index, data, None, (data.shape[1], data.shape[0])
            else:
                probe = decoder.probe(data)
                decoder.full(data, probe)
                yield index, data, probe, (probe.width, probe.height)
        except LoaderError:
            continue


def usable_decoders() -> list[str]:
    """The decoders that work here, best first."""
    usable = []
    for name in DECODER_NAMES[1:]:
        try:
            choose_jpeg_decoder(name)
        except LoaderError:
            continue
        usable.append(name)
    return usable


def read_rate(source: Source, seconds: float) -> Rate:
    """Files per second read one after another by one thread, from the page cache once warm."""
    numbers = iter(count())

    def read() -> int:
        try:
            source.read(next(numbers) % len(source))
        except LoaderError:
            return 0
        return 1

    return measure_rate(read, seconds=seconds)


def transfer_rate(pipeline: ImagePipeline, batch_size: int, dtype: torch.dtype, device: str, seconds: float) -> Rate:
    """Images per second that one uint8 host batch can be copied to `device` and normalised there: the feed alone.

    On a CPU there is no copy, only the normalising pass.
    """
    height, width = pipeline.size
    batch = torch.randint(0, 256, (batch_size, height, width, 3), dtype=torch.uint8)
    target = torch.device(device)
    stage = BatchStage(pipeline, dtype, target)
    if target.type == "cuda":
        batch = batch.pin_memory()
    out = torch.empty(batch.shape, dtype=dtype) if target.type == "cpu" else None

    def send() -> int:
        stage(batch.to(target, non_blocking=True), out)
        return batch_size

    return measure_rate(send, seconds=seconds, device=device)
