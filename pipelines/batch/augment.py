"""Operations on uint8 pixels, as planned for a batch: automatic policies, colour jitter, grey and blur."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.batch import device_ops, geometry, interpolate, lookup_tables, native_ops
from penstock.pipelines.batch.blur import blur_each, blur_together
from penstock.pipelines.batch.color import adjust_color, adjust_hue, adjust_sharpness, make_grey
from penstock.pipelines.batch.upload_parameters import to_device
from penstock.pipelines.plan.augmentations import AugmentPlan, Floats, Op
from penstock.pipelines.plan.moves import inverse_matrices

# Without the native library, a batch is processed in pieces of this many pixels: on a CPU the intermediate results stay
# in the processor's cache, on another device they take less than half a gigabyte.
_CPU_PIXELS = 1 << 16
_DEVICE_PIXELS = 1 << 24
# Operations that run together; a round sorts its images in this order, so that each group is one slice.
_GROUPS: tuple[tuple[Op, ...], ...] = (
    (Op.IDENTITY,),
    geometry.OPS,
    lookup_tables.OPS,
    (Op.COLOR,),
    (Op.SHARPNESS,),
    (Op.HUE,),
    (Op.GRAYSCALE,),
    (Op.BLUR,),
    *interpolate.GROUPS,
)
_WHOLE_GROUPS = range(_GROUPS.index((Op.BLUR,)), len(_GROUPS))  # split their batches into pieces themselves
_ON_CPU = {
    Op.GRAYSCALE: make_grey,
    Op.BLUR: blur_each,
    Op.COLOR: adjust_color,
    Op.SHARPNESS: adjust_sharpness,
    Op.HUE: adjust_hue,
}
_ON_DEVICE = {
    Op.GRAYSCALE: make_grey,
    Op.BLUR: blur_together,
    Op.COLOR: device_ops.adjust_color,
    Op.SHARPNESS: device_ops.adjust_sharpness,
    Op.HUE: device_ops.adjust_hue,
}
_IN_C = {
    Op.GRAYSCALE: native_ops.make_grey,
    Op.BLUR: native_ops.blur,
    Op.COLOR: native_ops.adjust_color,
    Op.SHARPNESS: native_ops.adjust_sharpness,
    Op.HUE: native_ops.adjust_hue,
}
_PLACE_OF_OP = np.argsort([op for group in _GROUPS for op in group])  # in the order above
_GROUP_OF_OP = np.array([number for op in sorted(Op) for number, group in enumerate(_GROUPS) if op in group])


def augment(images: torch.Tensor, plan: AugmentPlan, fill: tuple[int, int, int] = (0, 0, 0)) -> torch.Tensor:
    """Apply the operations of `plan` to uint8 [batch, height, width, 3], and return the result in new memory.

    Runs on the images' device, piece by piece; nothing is read back from the device. Operations that interpolate fill
    the areas outside an image with the colour `fill`, the others with black.
    """
    order, memory = np.arange(len(images)), [torch.empty_like(images), torch.empty_like(images)]
    for ops, values in zip(plan.ops, plan.values, strict=True):
        ranked = np.argsort(_PLACE_OF_OP[ops[order]], kind="stable")
        images = _select_rows(images, ranked, memory)
        order = order[ranked]
        _apply_round(images, ops[order], values[order], fill)
    return _select_rows(images, np.argsort(order), memory)


def _select_rows(images: torch.Tensor, rows: npt.NDArray[np.int64], memory: list[torch.Tensor]) -> torch.Tensor:
    """Copy images in another order, to one of two memories in turn: fresh pages cost as much as the work."""
    memory.reverse()
    return torch.index_select(images, 0, to_device(rows, images.device), out=memory[0])


def _apply_round(images: torch.Tensor, ops: npt.NDArray[np.int8], values: Floats, fill: tuple[int, int, int]) -> None:
    """Apply one operation to each image, in place; `ops`, sorted in the order of _GROUPS, and `values` are [batch]."""
    groups = _GROUP_OF_OP[ops]
    height, width = images.shape[1:3]
    limit = _CPU_PIXELS if images.device.type == "cpu" else _DEVICE_PIXELS
    step = len(images) if native_ops.library_for(images) else max(1, limit // (height * width))
    for number in np.unique(groups[groups > 0]).tolist():
        begin, end = np.searchsorted(groups, (number, number + 1)).tolist()
        of_group = end - begin if number in _WHOLE_GROUPS else step
        for first in range(begin, end, of_group):
            piece = slice(first, min(first + of_group, end))
            _apply_group(images[piece], ops[piece], values[piece], fill)


def _apply_group(images: torch.Tensor, ops: npt.NDArray[np.int8], values: Floats, fill: tuple[int, int, int]) -> None:
    """Apply one operation to each image, in place; all belong to the same group."""
    op, library = Op(ops[0]), native_ops.library_for(images)
    if op in geometry.OPS:
        geometry.warp(images, inverse_matrices(ops, values, (images.shape[1], images.shape[2])))
    elif op >= Op.SHEAR_X_BILINEAR:
        interpolate.warp_smoothly(images, ops, values, fill)
    elif op in lookup_tables.OPS:
        lookup_tables.map_values(images, ops, values)
    elif library is not None:
        _IN_C[op](library, images, values)
    else:
        (_ON_CPU if images.device.type == "cpu" else _ON_DEVICE)[op](images, values)
