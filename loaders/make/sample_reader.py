"""SampleReader: reads one sample of a source and decodes a window of it."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import Source
from penstock.loaders.data.sources.source_faults import call_source
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Levels, Window
from penstock.pipelines.sample.decode import ImageDecoder, ImageInfo
from penstock.pipelines.sample.orientation import stored_window, upright


class Loaded(NamedTuple):
    """A loaded sample with known size.

    Attributes:
        sample: index in the source.
        data: the encoded image, or pixels [height, width, channels].
        probe: information from the header, or from a cache about its pixels; None for other pixels.
        width: width of the upright image in pixels.
        height: height of the upright image in pixels.
    """

    sample: int
    data: bytes | Levels
    probe: ImageInfo | None
    width: int
    height: int


class SampleReader:
    """Reads and decodes the samples of one source, in one thread.

    Attributes:
        read_s: seconds spent inside the source since it was last set to 0.
        repair: description of libjpeg's repair of the latest crop; "" if there was none.
    """

    def __init__(self, source: Source, decoder: ImageDecoder, sound: npt.NDArray[np.bool_] | None = None) -> None:
        """Read from `source`; `sound`, bool [len(source)], marks samples that libjpeg does not repair."""
        self._source, self._decoder = source, decoder
        self._sound = np.zeros(len(source), bool) if sound is None else sound
        self.repair = ""
        self._find_orientation = getattr(source, "stored_orientation", None)
        self.read_s = 0.0

    def load(self, sample: int) -> Loaded:
        """Return `sample` with its size. Raises LoaderError."""
        started = time.perf_counter()
        try:
            data = call_source(self._source.read, sample)
        finally:
            self.read_s += time.perf_counter() - started
        exif = 0 if self._find_orientation is None else self._find_orientation(sample)
        if isinstance(data, bytes):
            probe = self._decoder.probe(data, exif)
        else:
            if not (isinstance(data, np.ndarray) and data.ndim == 3 and self._decoder.takes(data.dtype)):
                raise _type_error(data)
            data = self._decoder.select_channels(data)
            if not exif:
                return Loaded(sample, data, None, data.shape[1], data.shape[0])
            probe = self._decoder.probe_pixels(data, exif)
        return Loaded(sample, data, probe, probe.width, probe.height)

    def exif(self, item: Loaded) -> int:
        """Return the EXIF orientation of a sample's file, 1 to 8, applied or not."""
        if item.probe is None:
            return 1
        return self._decoder.read_exif(item.data, item.probe) if isinstance(item.data, bytes) else item.probe.exif

    def crop(self, item: Loaded, window: Window) -> Levels:
        """Decode `window` of the upright image to [height, width, channels], valid until the next call."""
        self.repair = ""
        if isinstance(item.data, np.ndarray):
            orientation = 1 if item.probe is None else item.probe.orientation
            x, y, w, h = stored_window(window, item.width, item.height, orientation)
            return upright(item.data[y : y + h, x : x + w], orientation)
        assert item.probe is not None
        tells = self._decoder.reports_repairs(item.probe)
        sound = bool(self._sound[item.sample]) if tells else self.sound(item)
        pixels = self._decoder.window(item.data, item.probe, window, sound=sound)
        self.repair = self._decoder.repair
        if tells and self._decoder.has_asked:  # a warning about its header hid others: check once, not for every crop
            self.sound(item)
        return pixels

    def sound(self, item: Loaded) -> bool:
        """Return whether libjpeg decodes the file of `item` without repairs, or refuses it; checked once per sample."""
        assert isinstance(item.data, bytes)
        assert item.probe is not None
        if not self._sound[item.sample]:
            self._sound[item.sample] = self._decoder.sound(item.data, item.probe)
        return bool(self._sound[item.sample])


def _type_error(data: object) -> LoaderError:
    got = f"{data.dtype} {list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
    cause = f"the source's read() must return bytes or pixels uint8 [h, w, 3], got {got}"
    fix = "convert its result, for example a memoryview with bytes()"
    if isinstance(data, np.ndarray) and data.ndim == 3 and data.dtype.kind in "uif":
        fix = f"pass ImagePipeline(depth={16 if data.dtype == np.uint16 else 32})"
    return LoaderError("E-DATASET", cause, fix=fix)
