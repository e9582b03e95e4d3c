"""channel_statistics: mean and standard deviation of each channel over the images of a data set."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from typing_extensions import Unpack

from penstock.loaders.data.sources.contract import Source
from penstock.loaders.data.sources.source_faults import name_sample
from penstock.loaders.front.loader_options import OpenOptions
from penstock.loaders.front.open_source import SourceLike, open_source
from penstock.loaders.make.sample_reader import SampleReader
from penstock.loaders.system.machine import available_cpus
from penstock.loaders.system.progress_bar import SHOW_AFTER_S, ProgressBar
from penstock.pipelines.errors import LoaderError, printable
from penstock.pipelines.messages.checked import checked_choice, checked_int, checked_number
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.sample.decode_bands import Bands
from penstock.pipelines.sample.resize import to_depth, to_grey
from penstock.pipelines.spec import DEFAULT_MAX_PIXELS, MAX_CHANNELS, ImagePipeline

_LOOKED_AT = 16  # samples that decide the number of channels and the depth
_CHUNK = 256  # images whose sums are computed at once


@dataclass(frozen=True, kw_only=True)
class ChannelStatistics:
    """Statistics of each channel, over all pixels of all images alike.

    Attributes:
        mean, std: as ImagePipeline takes them: on a scale from 0 to 1, with depth=32 in the units of the images. The
            standard deviation is that of the whole (divided by the number of values, not by one less).
        lowest, highest: extreme levels, as the pipeline reads them.
        counts: number of values, without those that are ignored and without NaN.
        samples: number of images read.
        bad: number of images that could not be read.
        channels, depth: settings of ImagePipeline to which these belong.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    lowest: tuple[float, ...]
    highest: tuple[float, ...]
    counts: tuple[int, ...]
    samples: int
    bad: int
    channels: int
    depth: int

    def settings(self) -> dict[str, Any]:
        """Return channels, depth, mean and std, for ImagePipeline(**statistics.settings(), ...)."""
        return {name: getattr(self, name) for name in ("channels", "depth", "mean", "std")}


def channel_statistics(
    source: SourceLike,
    *,
    channels: int | None = None,
    depth: Literal[8, 16, 32] | None = None,
    samples: int | None = None,
    seed: int = 0,
    ignore: float | None = None,
    on_bad_sample: Literal["raise", "skip"] = "raise",
    max_pixels: int = DEFAULT_MAX_PIXELS,
    **options: Unpack[OpenOptions],
) -> ChannelStatistics:
    """Return mean and standard deviation of each channel, read image by image from any data.

        found = channel_statistics("scenes", samples=1000, ignore=0)
        pipeline = ImagePipeline(size=(224, 224), **found.settings())

    Images are decoded whole, as stored: not cropped, resized or turned. Every pixel counts alike, so large images count
    more. Levels of 8 and 16 bits are counted exactly, in integers; floats in float64, in the order of the samples.

    Args:
        source: any source that open_source accepts, with its `options`.
        channels: number of channels, as for ImagePipeline; by default that of the first images: 3 for photos, of which
            some are grey.
        depth: as for ImagePipeline; by default the smallest that keeps the levels of the first images.
        samples: number of images, chosen at random without replacement; by default all.
        seed: seed of this choice.
        ignore: level to leave out, such as the "no data" value of satellite images, in each channel separately.
        on_bad_sample: "raise", or "skip" to count images that cannot be read.
        max_pixels: as for ImagePipeline.

    Raises ValueError for images of different channels without `channels`, LoaderError for bad images, and the errors
    of open_source.
    """
    checked_choice("on_bad_sample", on_bad_sample, ("raise", "skip"))
    if ignore is not None:
        checked_number("ignore", ignore)
    data = open_source(source, **options)
    chosen = _choose_samples(len(data), samples, seed)
    given = None if channels is None else checked_int("channels", channels, 1, MAX_CHANNELS)
    found: Any = _look_at(data, chosen, given, max_pixels) if given is None or depth is None else (given, depth)
    count, bits = found[0], found[1] if depth is None else depth
    pipeline = ImagePipeline(channels=count, depth=bits, mean=(0.0,) * count, std=(1.0,) * count, max_pixels=max_pixels)
    total, bad = [_Sum()] * count, 0
    for sums, num_bad in _sum_all(data, chosen, pipeline, ignore, skips=on_bad_sample == "skip"):
        total, bad = list(map(_join, total, sums)), bad + num_bad
    if not all(each.number for each in total):
        raise LoaderError("E-NODATA", f"a channel has no value in {len(chosen):,} images", fix="see ignore=")
    scale = 1.0 if bits == 32 else 2.0**bits - 1
    return ChannelStatistics(
        mean=tuple(each.moments[0] / scale for each in total),
        std=tuple(math.sqrt(each.moments[1]) / scale for each in total),
        lowest=tuple(each.lowest for each in total),
        highest=tuple(each.highest for each in total),
        counts=tuple(each.number for each in total),
        samples=len(chosen) - bad,
        bad=bad,
        channels=count,
        depth=bits,
    )


class _Sum(NamedTuple):
    """Sums over values of a channel: exact for integers, otherwise by mean and m2.

    m2 is the sum of squared distances from the mean.
    """

    number: int = 0
    total: int = 0
    squares: int = 0
    mean: float = 0.0
    m2: float = 0.0
    lowest: float = math.inf
    highest: float = -math.inf

    @property
    def moments(self) -> tuple[float, float]:
        """Mean and variance."""
        n = self.number
        if self.squares:
            return self.total / n, (n * self.squares - self.total**2) / n**2
        return self.mean, self.m2 / n


def _sum_values(values: npt.NDArray[Any], ignore: float | None) -> _Sum:
    values = values if values.dtype.kind == "u" else values[~np.isnan(values)]
    values = values if ignore is None else values[values != ignore]
    if not len(values):
        return _Sum()
    extremes = values.min().item(), values.max().item()
    if values.dtype.kind == "u":
        wide = values.astype(np.uint64)
        return _Sum(len(values), int(wide.sum()), int((wide * wide).sum()), 0.0, 0.0, *extremes)
    exact = values.astype(np.float64)
    mean = float(exact.mean())
    return _Sum(len(values), 0, 0, mean, float(np.square(exact - mean).sum()), *extremes)


def _join(one: _Sum, two: _Sum) -> _Sum:
    """Return the sums over the values of both.

    Chan, Golub and LeVeque (1979): "Updating formulae and a pairwise algorithm for computing sample variances".
    """
    number = one.number + two.number
    if not (one.number and two.number):
        return one if one.number else two
    shift, share = two.mean - one.mean, two.number / number
    mean, m2 = one.mean + shift * share, one.m2 + two.m2 + shift * shift * one.number * share
    extremes = min(one.lowest, two.lowest), max(one.highest, two.highest)
    return _Sum(number, one.total + two.total, one.squares + two.squares, mean, m2, *extremes)


def _choose_samples(num_samples: int, wanted: int | None, seed: int) -> npt.NDArray[np.int64]:
    if wanted is None or checked_int("samples", wanted, 1) >= num_samples:
        return np.arange(num_samples)
    chosen: npt.NDArray[np.int64] = np.random.default_rng(seed).choice(num_samples, wanted, replace=False)
    return np.sort(chosen)


def _look_at(source: Source, chosen: npt.NDArray[np.int64], channels: int | None, max_pixels: int) -> tuple[int, int]:
    """Return the number of channels, if it is not given, and the depth of the first images.

    Raises ValueError for images of different channels if the number is not given.
    """
    decoder = ImageDecoder(ImagePipeline(max_pixels=max_pixels))
    samples, dtypes, error = dict[int, int](), set[np.dtype[Any]](), None
    for index in chosen[:_LOOKED_AT].tolist():
        try:
            data = source.read(index)
            if isinstance(data, np.ndarray):
                count = 1 if data.shape[2] == 3 and data.strides[2] == 0 else data.shape[2]
                dtypes.add(data.dtype)
            else:
                bands = decoder.bands(data, channels or 0)
                count = channels or _count_channels(bands)
                dtypes.add(bands.dtype)
            samples.setdefault(count, index)
        except LoaderError as caught:
            error = error or caught.locate(sample=index, path=name_sample(source, index))
    if not dtypes:
        assert error is not None
        raise error
    if channels is None and not samples.keys() <= {1, 3}:
        _check_equal(source, samples)
    depths = [{"uint8": 8, "uint16": 16}.get(dtype.name, 32) for dtype in dtypes]
    return channels or checked_int("channels", max(samples), 1, MAX_CHANNELS), max(depths)


def _count_channels(bands: Bands) -> int:
    """Return the number of channels of an image. Raises LoaderError for an array whose first or last side may be it."""
    count = bands.channels or bands.decode().shape[2]
    if bands.likely_channels and count <= MAX_CHANNELS:
        cause = f"the array has {bands.likely_channels} channels in its first axis, or {count} in its last one"
        raise LoaderError("E-UNSUPPORTED", cause, fix=f"pass channels={bands.likely_channels} or channels={count}")
    return bands.likely_channels or count


def _check_equal(source: Source, samples: dict[int, int]) -> None:
    """Raise ValueError for several numbers of channels; `samples` has the first sample with each, in their order."""
    counts = list(samples)
    if len(counts) > 1:
        other = counts[2 if set(counts[:2]) == {1, 3} else 1]
        first, at = samples[counts[0]], samples[other]
        raise ValueError(
            f"sample {at} ({printable(name_sample(source, at))}) has {other} channels, but sample {first} has "
            f"{counts[0]}: pass channels="
        )


def _sum_all(
    source: Source, chosen: npt.NDArray[np.int64], pipeline: ImagePipeline, ignore: float | None, *, skips: bool
) -> Iterator[tuple[list[_Sum], int]]:
    """Yield the sums of each channel, and the number of bad images, for one image after another."""
    own, done = threading.local(), 0

    def sum_image(index: int) -> tuple[list[_Sum], int]:
        if not hasattr(own, "reader"):
            own.reader = SampleReader(source, ImageDecoder(pipeline))
        try:
            item = own.reader.load(index)
            levels = own.reader.crop(item, (0, 0, item.width, item.height))
        except LoaderError as error:
            if skips and error.of_sample:
                return [_Sum()] * pipeline.channels, 1
            path = error.path if error.path is not None else name_sample(source, index)
            raise error.locate(sample=index, path=path) from error.__cause__
        levels = to_depth(levels, np.dtype(pipeline.sample_dtype))
        levels = to_grey(levels) if pipeline.channels == 1 and levels.shape[2] == 3 else levels
        return [_sum_values(levels[:, :, channel].reshape(-1), ignore) for channel in range(pipeline.channels)], 0

    bars = ProgressBar("statistics", len(chosen), show_after_s=SHOW_AFTER_S)
    with bars as bar, ThreadPoolExecutor(available_cpus()) as pool:
        try:
            for first in range(0, len(chosen), _CHUNK):  # few results wait for the consumer
                yield from pool.map(sum_image, chosen[first : first + _CHUNK].tolist())
                done = min(done + _CHUNK, len(chosen))
                bar.show(done, what=f"statistics of {done:,} images")
        except BaseException:  # on Ctrl-C, too, do not wait for images that have not begun
            pool.shutdown(wait=False, cancel_futures=True)
            raise
