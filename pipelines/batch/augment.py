"""The planned operations of a batch: RandAugment, TrivialAugmentWide and ColorJitter on uint8 pixels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.batch import geometry as augment_geometry
from penstock.pipelines.batch import lookup_tables as augment_tables
from penstock.pipelines.batch.color import adjust_color, adjust_hue, adjust_sharpness
from penstock.pipelines.batch.geometry import inverse_matrices, warp
from penstock.pipelines.batch.lookup_tables import map_values
from penstock.pipelines.batch.to_device import to_device
from penstock.pipelines.plan.augmentations import AugmentPlan, Floats, Op

_CPU_PIXELS = 1 << 16  # of a piece whose intermediate results stay in a processor's cache
_DEVICE_PIXELS = 1 << 23  # of a piece whose intermediate results take less than half a gigabyte
# Operations that run together; a round puts its samples into this order, so that each group is one slice.
_GROUPS: tuple[tuple[Op, ...], ...] = (
    (Op.IDENTITY,),
    augment_geometry.OPS,
    augment_tables.OPS,
    (Op.COLOR,),
    (Op.SHARPNESS,),
    (Op.HUE,),
)
_ALONE = {Op.COLOR: adjust_color, Op.SHARPNESS: adjust_sharpness, Op.HUE: adjust_hue}
_ORDER = np.argsort([op for group in _GROUPS for op in group])
_GROUP = np.array([number for op in sorted(Op) for number, group in enumerate(_GROUPS) if op in group])


def augment(images: torch.Tensor, plan: AugmentPlan) -> torch.Tensor:
    """The rounds of `plan` applied to uint8 [batch, height, width, 3], on its device and into memory of its own.

    It works piece by piece, and reads nothing back from the device.
    """
    order = np.arange(len(images))
    for ops, values in zip(plan.ops, plan.values, strict=True):
        ranked = np.argsort(_ORDER[ops[order]], kind="stable")
        images = _rows(images, ranked)
        order = order[ranked]
        _round(images, ops[order], values[order])
    return _rows(images, np.argsort(order))


def _rows(images: torch.Tensor, rows: npt.NDArray[np.int64]) -> torch.Tensor:
    return images.index_select(0, to_device(rows, images.device))


def _round(images: torch.Tensor, ops: npt.NDArray[np.int8], values: Floats) -> None:
    """One operation on each image, in place; `ops` in the order of _GROUPS."""
    groups = _GROUP[ops]
    height, width = images.shape[1:3]
    limit = _CPU_PIXELS if images.device.type == "cpu" else _DEVICE_PIXELS
    step = max(1, limit // (height * width))
    for number in np.unique(groups[groups > 0]):
        begin, end = np.searchsorted(groups, (number, number + 1))
        for first in range(begin, end, step):
            piece = slice(first, min(first + step, end))
            _apply(images[piece], ops[piece], values[piece])


def _apply(images: torch.Tensor, ops: npt.NDArray[np.int8], values: Floats) -> None:
    """One operation of the same group on each image, in place."""
    if ops[0] in augment_geometry.OPS:
        warp(images, inverse_matrices(ops, values, (images.shape[1], images.shape[2])))
    elif ops[0] in augment_tables.OPS:
        map_values(images, ops, values)
    else:
        _ALONE[Op(ops[0])](images, values)
