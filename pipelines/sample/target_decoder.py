"""TargetDecoder: opens the image targets of one field; only the window that is needed is decoded and checked."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.fields.pictures import Picture, Values, crop_array
from penstock.pipelines.image_types import Window
from penstock.pipelines.sample.decode import ImageDecoder, ImageInfo
from penstock.pipelines.sample.decode_bands import Bands, is_only_bands, read_bands
from penstock.pipelines.sample.formats import begins_like_image, has_16_bits
from penstock.pipelines.sample.orientation import upright
from penstock.pipelines.sample.tiff_header import is_wide_tiff
from penstock.pipelines.spec import ImagePipeline


class Layout(NamedTuple):
    """Channels and type of a target."""

    channels: int
    dtype: str


class TargetDecoder:
    """Opens image targets; an instance belongs to one thread.

    A target is decoded like an image: JPEG, PNG, WebP, BMP, GIF and TIFF with levels of 8 or 16 bits, TIFF with others
    (several channels need tifffile), and .npy files or arrays, [height, width] or [height, width, channels]. EXIF
    orientation is applied if the pipeline applies it; arrays have none. With three channels grey is repeated; alpha is
    dropped unless the field has 2 or 4 channels. Other conversions are refused.

    Args:
        kind: the field's kind; None to find the layout of any target.
        judge: detect repairs by libjpeg.

    Attributes:
        repair: libjpeg's warning about the last window; "" for none.
    """

    def __init__(
        self, kind: FieldKind | None, pipeline: ImagePipeline, decoder: str = "auto", *, judge: bool = False
    ) -> None:
        self._kind, self.repair, self._max_pixels = kind, "", pipeline.max_pixels
        self._applies_exif = pipeline.exif == "apply"
        depth = 8 if kind is not None and kind.dtype == "uint8" else 16
        own = ImagePipeline(exif=pipeline.exif, max_pixels=pipeline.max_pixels, depth=depth)  # type: ignore[arg-type]
        self._decoder = ImageDecoder(own, decoder, judge=judge)

    def open(self, data: bytes | npt.NDArray[Any]) -> Picture:
        """Return a target, an encoded file or an array. Raises LoaderError, as its `crop` does."""
        self.repair = ""
        if not isinstance(data, bytes):
            return self._open_array(data)
        bands = self._find_bands(data)
        if bands is not None:
            orientation = bands.orientation(applies=self._applies_exif)
            levels = bands.decode()
            return self._open_array(upright(levels, orientation) if self._applies_exif else levels)
        info = self._decoder.probe(data)
        return Picture(info.width, info.height, partial(self._crop_file, data, info))

    def layout(self, data: bytes | npt.NDArray[Any]) -> Layout:
        """Return the layout of a target; alpha is not counted. Raises LoaderError."""
        if isinstance(data, bytes) and self._find_bands(data) is None:
            levels = self._decoder.stored(data).decode()
            return Layout(3 if levels.shape[2] > 2 else 1, levels.dtype.name)
        picture = self.open(data)
        levels = picture.crop((0, 0, picture.width, picture.height))
        name = {"bool": "uint8", "uint8": "uint8", "uint16": "uint16"}.get(levels.dtype.name, "float32")
        return Layout(levels.shape[2], name)

    def _find_bands(self, data: bytes) -> Bands | None:
        """Return an array, a stack or a TIFF with levels other than 8 or 16 bits; None for other files."""
        channels = 3 if self._kind is None else self._kind.channels
        if is_only_bands(data):
            return read_bands(data, channels, self._decoder.bands)
        if not is_wide_tiff(data):
            return None
        from penstock.pipelines.sample.decode_pillow import read_wide_tiff

        return read_wide_tiff(data, self._max_pixels) or self._decoder.bands(data)

    def _open_array(self, values: npt.NDArray[Any]) -> Picture:
        if values.ndim not in (2, 3) or values.dtype.kind not in "biuf" or not values.size:
            cause = f"a target must be numbers [height, width] or [height, width, channels], got {values.dtype} "
            raise LoaderError("E-UNSUPPORTED", f"{cause}{list(values.shape)}", fix="save each target in this layout")
        levels = values[:, :, None] if values.ndim == 2 else values
        height, width, channels = levels.shape
        if self._kind is not None and channels != self._kind.channels:
            raise self._other_channels(channels)
        if self._kind is None:
            return Picture(width, height, partial(crop_array, levels))
        dtype = np.dtype(self._kind.dtype)
        if levels.dtype != dtype and dtype != np.float32:
            levels = _convert_integers(levels, dtype)
        return Picture(width, height, lambda window: crop_array(levels, window).astype(dtype, copy=False))

    def _crop_file(self, data: bytes, info: ImageInfo, window: Window) -> Values:
        assert self._kind is not None
        channels = self._kind.channels
        found = np.uint16 if has_16_bits(data, info.format) else np.uint8
        self._check_dtype(np.dtype(found))
        if channels == 3:
            levels = self._decoder.window(data, info, window)
            self.repair = self._decoder.repair
            return levels.astype(self._kind.dtype, copy=False)
        levels = self._decoder.stored(data).decode()
        self.repair = self._decoder.repair
        if channels != levels.shape[2]:
            if channels != 1 or levels.shape[2] != 2:
                raise self._other_channels(levels.shape[2])
            levels = levels[:, :, :1]
        return crop_array(upright(levels, info.orientation), window).astype(self._kind.dtype, copy=False)

    def _check_dtype(self, found: np.dtype[Any]) -> None:
        """Raise LoaderError for levels of a file that the field's type cannot hold unchanged."""
        assert self._kind is not None
        if self._kind.dtype not in (found.name, "float32"):
            cause = f"the target has levels of {8 * found.itemsize} bits, but the field has dtype={self._kind.dtype!r}"
            raise LoaderError("E-DATASET", cause, fix=f"pass ImageTargets(..., dtype={found.name!r}) or 'float32'")

    def _other_channels(self, found: int) -> LoaderError:
        assert self._kind is not None
        cause = f"the target has {found} channels, but the field has channels={self._kind.channels}"
        return LoaderError("E-DATASET", cause, fix=f"pass ImageTargets(..., channels={found}), or convert the targets")


def _convert_integers(levels: Values, dtype: np.dtype[Any]) -> Values:
    """Return integers in another type. Raises LoaderError for integers that do not fit, and for floats."""
    if levels.dtype.kind == "f":
        cause = f"the target has values of type {levels.dtype}, but the field has dtype={dtype.name!r}"
        raise LoaderError("E-DATASET", cause, fix="pass ImageTargets(..., dtype='float32')")
    low, high, held = int(levels.min()), int(levels.max()), np.iinfo(dtype)
    if low < held.min or high > held.max:
        cause = f"the target has values from {low} to {high}, but {dtype.name} has {held.min} to {held.max}"
        raise LoaderError("E-DATASET", cause, fix="pass ImageTargets(..., dtype='float32')")
    return levels.astype(dtype)


def is_image_file(data: bytes) -> bool:
    """Return whether bytes begin like a file that TargetDecoder opens."""
    return is_only_bands(data) or begins_like_image(data)
