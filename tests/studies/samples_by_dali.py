"""DALI's own pipelines for each kind of sample, as its documentation builds them.

Photo: image_random_crop draws and decodes the crop, also on a GPU ("mixed"); bicubic: the same with INTERP_CUBIC.
Views: the file is decoded once, and each view is a random_resized_crop of it. Mask and target: two readers with the
same seed and one window for both files, so that image and mask, or target, stay together. Own transform:
python_function, which DALI calls for one image at a time in one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sample_kinds import BATCH, SIZE, VIEWS, WHOLE, WORKERS, shift_colors

RATIO = (3 / 4, 4 / 3)
_GENERATOR = np.random.default_rng(0)


def shift_at_random(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Call the user's function with one generator for all images: DALI has no generator per sample."""
    return shift_colors(image, _GENERATOR)


def make_dali(kind: str, photos: Sequence[Path], masks: Sequence[Path], *, on_gpu: bool = False) -> Any:
    """Return an iterable of epochs of batches: lists of one dict of tensors.

    masks: the file of each photo's mask or target. kind: "photo", "bicubic", "views", "transform", "mask" or "target".
    on_gpu: decode and resize there, for "photo" only.
    """
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    def read(paths: Sequence[Path], name: str) -> Any:
        return fn.readers.file(files=list(map(str, paths)), random_shuffle=True, seed=1, name=name)

    def crop_of(encoded: Any) -> Any:
        return fn.random_crop_generator(fn.peek_image_shape(encoded), random_area=WHOLE, random_aspect_ratio=RATIO)

    def cut(encoded: Any, window: Any, mirror: Any, filter_: Any, colors: Any) -> Any:
        part = fn.decoders.image_slice(
            encoded, *window, axes=[0, 1], normalized_anchor=False, normalized_shape=False, output_type=colors
        )
        return fn.flip(fn.resize(part, size=[SIZE, SIZE], interp_type=filter_), horizontal=mirror)

    def planes(image: Any, mirror: Any = 0) -> Any:
        return fn.crop_mirror_normalize(image, mirror=mirror, dtype=types.UINT8, output_layout="CHW", mean=0.0, std=1.0)

    @pipeline_def(batch_size=BATCH, num_threads=WORKERS, device_id=0 if on_gpu else None, seed=1)
    def work() -> Any:
        encoded, number = read(photos, "Reader")
        if kind in ("photo", "bicubic"):
            part = fn.decoders.image_random_crop(
                encoded,
                device="mixed" if on_gpu else "cpu",
                output_type=types.RGB,
                random_area=WHOLE,
                random_aspect_ratio=RATIO,
                adjust_orientation=False,
            )
            how = types.INTERP_CUBIC if kind == "bicubic" else types.INTERP_TRIANGULAR
            image = fn.resize(part, size=[SIZE, SIZE], interp_type=how, antialias=True)
            return planes(image, fn.random.coin_flip()), number
        if kind == "views":
            whole = fn.decoders.image(encoded, output_type=types.RGB)
            made = []
            for size, share in VIEWS:
                view = fn.random_resized_crop(
                    whole, size=size, random_area=share, random_aspect_ratio=RATIO, interp_type=types.INTERP_TRIANGULAR
                )
                made.append(planes(view, fn.random.coin_flip()))
            return *made, number
        mirror, window = fn.random.coin_flip(), crop_of(encoded)
        image = cut(encoded, window, mirror, types.INTERP_TRIANGULAR, types.RGB)
        if kind == "transform":
            return fn.python_function(image, function=shift_at_random), number
        mask, its_number = read(masks, "Masks")
        if kind == "target":
            target = cut(mask, window, mirror, types.INTERP_TRIANGULAR, types.RGB)
            return planes(image), planes(target), number, its_number
        return planes(image), cut(mask, window, mirror, types.INTERP_NN, types.GRAY), number, its_number

    names = {
        "photo": ["image", "number"],
        "bicubic": ["image", "number"],
        "views": [*(f"view {number}" for number in range(len(VIEWS))), "number"],
        "transform": ["image", "number"],
        "mask": ["image", "mask", "number", "number of mask"],
        "target": ["image", "target", "number", "number of mask"],
    }[kind]
    return DALIGenericIterator(
        work(), names, reader_name="Reader", last_batch_policy=LastBatchPolicy.DROP, auto_reset=True
    )


def check_masks(batch: dict[str, Any]) -> None:
    """Raise AssertionError if image and mask, or target, of a batch are not of the same sample."""
    assert (batch["number"] == batch["number of mask"]).all()
