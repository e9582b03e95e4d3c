"""ImageTargets: images that belong to samples, such as the sharp image, a depth map or the other half of a pair."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.fields.picture_files import few_samples, find_pictures
from penstock.loaders.data.samples.columns import ArrayColumn
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.data.sources.step import Field
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.fields.field_kinds import HIGHEST, FieldKind, TargetRules
from penstock.pipelines.image_types import INTERPOLATIONS, Interpolation
from penstock.pipelines.messages.checked import (
    checked_choice,
    checked_int,
    checked_number,
    checked_tuple,
    set_checked,
    shown,
)
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.sample.target_decoder import Layout, TargetDecoder
from penstock.pipelines.spec import MAX_CHANNELS, ImagePipeline

_DTYPES = (*HIGHEST, "float32")
_MOST_SCALE = 16
# Depth maps have a nearest distance: their lowest level above 0 is a share of the highest, and many steps above 0.
_RANGE, _STEPS = 200, 8
_FEW_LEVELS, _COUNTED = 16, 4096  # fewer levels are those of a mask; number of values whose levels are counted


@dataclass(frozen=True)
class ImageTargets:
    """The image targets of images; each is cropped, resized, turned and flipped with its image.

    Served as [batch, channels, height, width] in the loader's memory format: levels of `dtype`, or float32 with `mean`
    and `std` or with `range`. A target that does not have `channels`, a `dtype` or the size of its image times `scale`
    is a bad sample. Raises ValueError for settings that cannot work.

    Attributes:
        where: a folder, in which each target has the name of its image, with any suffix; a pattern such as
            "depth/{name}.npy", where {name} is the image's name without suffix; a function of the image's name that
            returns a path; a list of paths; numbers [n, height, width] or [n, height, width, channels]; or
            open_source(...) of images, such as open_source("train.tar", image="target.png"). A file is an image of 8 or
            16 bits, a TIFF with other levels (several channels need tifffile), or a .npy file, [height, width] or
            [height, width, channels].
        dtype: "uint8", "uint16" or "float32"; None for the type of the first target. "float32" accepts targets of all
            types and keeps their values: a level of 255 is 255.0. Others accept only values that they can represent,
            and files with their number of bits.
        channels: number of channels, 1 to 64; None for that of the first target, without alpha. With 3, grey is
            repeated; alpha is dropped unless there are 2 or 4.
        interpolation: filter of the resize: "bilinear" (None), "bicubic", "lanczos" or "box" (antialiased), or
            "nearest", which keeps values. Moves by auto_augment take the nearest pixel with "nearest" or `missing`, and
            are bilinear otherwise.
        scale: sides of a target as a multiple of its image's, and of the pipeline's size: 4 for super-resolution by 4.
            Windows are scaled exactly. With crop="random" both are copied without a resize, so that they agree to the
            pixel.
        fill: level of pixels outside the image, one or one per channel; NaN is possible for "float32".
        mean, std: serve `(level / 255 - mean) / std` as float32, one number or one per channel; 65535 for "uint16",
            and `(value - mean) / std` for "float32".
        range: (low, high), serve levels as float32 from `low` for 0 to `high` for 255 or 65535: (-1, 1) for pix2pix,
            (0, 65535 / 256) for depth in metres that was stored as PNGs of 256 levels per metre, as in KITTI.
        missing: level of pixels without a value, such as 0 in depth maps; NaN is possible for "float32". They are never
            mixed with others: the same pixels are missing as with "nearest", and others are the mean of the values
            below the filter. It is also the level outside the image. Not with filters that have negative weights,
            "bicubic" and "lanczos".
    """

    where: Any
    dtype: Literal["uint8", "uint16", "float32"] | None = None
    channels: int | None = None
    interpolation: Interpolation | None = None
    scale: int = 1
    fill: float | tuple[float, ...] = 0
    mean: float | tuple[float, ...] | None = None
    std: float | tuple[float, ...] | None = None
    range: tuple[float, float] | None = None
    missing: float | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None:
            checked_choice("dtype of image targets", self.dtype, _DTYPES)
        if self.channels is not None:
            set_checked(self, channels=checked_int("channels of image targets", self.channels, 1, MAX_CHANNELS))
        if self.interpolation is not None:
            checked_choice("interpolation of image targets", self.interpolation, INTERPOLATIONS)
        set_checked(self, scale=checked_int("scale of image targets", self.scale, 1, _MOST_SCALE))
        if self.range is not None:
            if self.mean is not None or self.std is not None:
                raise ValueError("pass either range, or mean and std, for image targets, not both")
            low, high = checked_tuple("range", self.range, ("low", "high"), checked_number)
            if low >= high:
                raise ValueError(f"range must be (low, high) with low below high, got {shown(self.range)}")
        if (self.mean is None) != (self.std is None):
            raise ValueError("image targets need both mean and std, or neither")
        if self.missing is not None and self.interpolation in ("bicubic", "lanczos"):
            raise ValueError(
                f"missing needs interpolation 'bilinear', 'box' or 'nearest', got {self.interpolation!r}, which has "
                "negative weights"
            )
        if self.missing is not None and self.fill != 0:
            raise ValueError(
                f"pass either fill or missing for image targets: {self.missing!r} is also the level outside"
            )

    def rules(self, layout: Layout) -> FieldKind:
        """Return the kind of the field for targets of a layout. Raises ValueError for settings that do not fit it."""
        channels, dtype = self.channels or layout.channels, self.dtype or layout.dtype
        if channels > MAX_CHANNELS:
            raise ValueError(f"the first target has {channels} channels, at most {MAX_CHANNELS} work")
        mean, std = self._moments(dtype, channels)
        outside = self.fill if self.missing is None else self.missing
        fill = _of_channels(
            "missing" if self.missing is not None else "fill", outside, channels, partial(_checked_level, dtype=dtype)
        )
        target = TargetRules(
            channels=channels,
            scale=self.scale,
            interpolation=self.interpolation or "bilinear",
            fill=fill,
            mean=mean,
            std=std,
            missing=None if self.missing is None else fill[0],
        )
        return FieldKind(kind="image", dtype=dtype, target=target)

    def _moments(self, dtype: str, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and std in levels; () for none."""
        highest = HIGHEST.get(dtype)
        if self.range is not None:
            if highest is None:
                raise ValueError("range needs levels of uint8 or uint16, got dtype='float32': pass mean and std")
            low, high = map(float, self.range)
            unit = highest / (high - low)
            return (-low * unit,) * channels, (unit,) * channels
        if self.mean is None:
            return (), ()
        mean = _of_channels("mean", self.mean, channels, checked_number)
        std = _of_channels("std", self.std, channels, partial(checked_number, above=0))
        unit = highest or 1
        return tuple(value * unit for value in mean), tuple(value * unit for value in std)


def _of_channels(name: str, value: Any, channels: int, check: Any) -> tuple[float, ...]:
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * channels
    if len(values) != channels:
        raise ValueError(f"{name} must be one number, or one for each of {channels} channels, got {shown(value)}")
    return tuple(float(check(f"{name} of image targets", each)) for each in values)


def _checked_level(name: str, value: Any, dtype: str) -> float:
    if dtype == "float32":
        return float(value) if isinstance(value, float) and value != value else float(checked_number(name, value))
    return float(checked_int(name, value, 0, HIGHEST[dtype]))


def target_field(source: Source, spec: ImageTargets, name: str) -> Field:
    """Return the field of a source's image targets, called `name`. Raises ValueError."""
    where = spec.where.numpy(force=True) if hasattr(spec.where, "detach") else spec.where
    if not isinstance(where, np.ndarray):
        column: Any = find_pictures(source, where, "target")
    else:
        column = ArrayColumn(_check_array(where, len(source)))
    known = spec.channels is not None and spec.dtype is not None
    kind = spec.rules(Layout(0, "") if known else _find_layout(source, column))
    if spec.interpolation is None and spec.missing is None and (kind.channels, kind.scale) == (1, 1):
        _warn_of_missing(name, column, kind, len(source))
    return Field(kind, column)


def _warn_of_missing(name: str, column: Any, kind: FieldKind, count: int) -> None:
    """Warn if targets look like depth maps, in which 0 is a missing value: they have 0, and no other low values."""
    decoder, has_zeros, low, high, enough = TargetDecoder(kind, ImagePipeline()), False, np.inf, 0.0, False
    try:
        for index in few_samples(count):
            picture = decoder.open(column.read(index))
            values = picture.crop((0, 0, picture.width, picture.height))
            present = values[values != 0]
            has_zeros = has_zeros or len(present) < values.size
            if not len(present):
                continue
            low, high = min(low, float(present.min())), max(high, float(present.max()))
            levels = np.unique(present[:: 1 + len(present) // _COUNTED]).astype(np.float64)
            enough = enough or len(levels) >= _FEW_LEVELS
            if not (low * _RANGE > high and low > _STEPS * np.median(np.diff(levels, append=high))):
                return
    except (LoaderError, OSError, ValueError):  # serving them reports the error
        return
    if has_zeros and enough:
        warn_user(
            f"field {name!r}: the targets contain 0 and no other value below {low:g}, so 0 may mean that a pixel "
            "has no value, and the resize mixes it with its neighbours: pass ImageTargets(..., missing=0), or "
            "interpolation='bilinear' if 0 is a value"
        )


def _check_array(values: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    is_image = values.ndim in (3, 4) and values.dtype.kind in "biuf"
    if not is_image or len(values) != count or values.shape[3:] > (MAX_CHANNELS,):
        cure = "; channels come last" if values.ndim == 4 else ""
        raise ValueError(
            f"targets must be numbers [{count}, height, width] or [{count}, height, width, channels], one per sample, "
            f"got {values.dtype} {list(values.shape)}{cure}"
        )
    return values


def _find_layout(source: Source, column: Any) -> Layout:
    """Return the layout of the first target that can be decoded. Raises ValueError."""
    decoder, first = TargetDecoder(None, ImagePipeline()), None
    for index in few_samples(len(source)):
        try:
            return decoder.layout(column.read(index))
        except (LoaderError, OSError, ValueError) as error:
            first = first or error
    raise ValueError(f"no target can be decoded: {first}; pass ImageTargets(..., channels=, dtype=) to serve others")
