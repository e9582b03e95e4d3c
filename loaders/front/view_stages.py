"""The batch stage of each view, after checks of what it cannot be combined with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from penstock.loaders.data.fields.keypoint_pairs import warn_of_unpaired
from penstock.loaders.data.sources.contract import Source, field_kinds_of, has_targets, require_labels
from penstock.loaders.make.layout import image_layout
from penstock.loaders.make.moving_checks import check_moving, check_scaled, handed_fields
from penstock.loaders.make.own_transform import OwnTransform, list_transforms, size_of_result, try_transforms
from penstock.loaders.order.schedule import Schedule
from penstock.loaders.run.feed.batch_feed import Stage
from penstock.pipelines.batch.stage import BatchStage, PlainStage
from penstock.pipelines.spec import ImagePipeline


def checked_transforms(
    source: Source, views: Sequence[ImagePipeline], transform: Any, batch_transform: Any, *, moves: Any, geometry: bool
) -> tuple[OwnTransform | None, ...]:
    """Return the user's transforms, each tried once. Raises ValueError if fields could not follow their images."""
    kinds = field_kinds_of(source)
    functions = list_transforms(transform, len(views))
    handed = handed_fields(kinds, functions, batch_transform, has_geometry=geometry, transform_moves=moves)
    transforms = try_transforms(
        functions, image_layout(views, 1).images, handed, [view.crop == "none" for view in views]
    )
    views = sized_views(views, transforms)
    for view, own in zip(views, transforms, strict=False):
        fixed = [name for name, kind in kinds.items() if kind.rules.moves] if own and own.fields is None else []
        pictures = [name for name, kind in kinds.items() if kind.kind == "image"]
        if view.crop == "none" and (geometry or fixed or pictures):
            names = ", ".join(["geometry"] * geometry + (fixed or pictures))
            raise ValueError(
                f"{names} cannot follow the transform of whole images: pass an albumentations Compose, which moves "
                "masks, boxes and keypoints, or another crop than 'none'"
            )
    if geometry and "geometry" in kinds:
        raise ValueError("with_geometry=True adds 'geometry' to batches, but the data has a field of that name")
    check_moving(
        [name for name, kind in kinds.items() if kind.rules.moves] + ["geometry"] * geometry, views, transforms
    )
    check_scaled(kinds, views)
    warn_of_unpaired(kinds, views)
    return transforms


def sized_views(views: Sequence[ImagePipeline], transforms: Sequence[OwnTransform | None]) -> tuple[ImagePipeline, ...]:
    """Return the pipelines, those of whole images with the size that their transform makes."""
    found = []
    for view, own in zip(views, transforms or [None] * len(views), strict=True):
        if view.crop == "none" and own is None:
            raise ValueError("crop='none' hands whole images of any size over to your function: pass transform=")
        if view.crop == "none" and own is not None and len(own.part.shape) > 1:
            view = replace(view, size=size_of_result(own.part.shape, view.channels))
        found.append(view)
    return tuple(found)


def make_stage(
    kind: type[BatchStage],
    dtype: torch.dtype,
    device: torch.device,
    num_classes: int,
    memory_format: torch.memory_format,
    view: ImagePipeline,
    transform: OwnTransform | None,
) -> Stage:
    """Return the batch stage of a view. Raises ValueError for augmentations if `transform` does not return images."""
    if transform is not None:
        shape, made = transform.part.shape, np.dtype(transform.part.dtype)
        if made != view.sample_dtype or len(shape) != 3 or shape[2] != view.channels:
            if view.augment.active:
                raise ValueError(f"augmentations need uint8 [h, w, 3], but transform returns {made} {list(shape)}")
            return PlainStage(transform.part.torch_dtype, dtype, device)
        view = replace(view, size=shape[:2])
    return kind(view, dtype, device, num_classes=num_classes, memory_format=memory_format)


def check_mixing(schedule: Schedule, source: Source) -> None:
    """Raise ValueError for batches or labels that mixup and cutmix cannot mix."""
    for batch_size in [phase.batch_size for phase in schedule.phases] or [schedule.batch_size]:
        if batch_size % 2:
            raise ValueError(f"batch_size must be even for mixup and cutmix, because they mix pairs; got {batch_size}")
    if has_targets(source):
        kinds = source.targets(np.zeros(1, np.int64))
        if isinstance(kinds, dict) or kinds.dtype.kind != "f":
            raise ValueError("mixup and cutmix need one label per sample: class numbers or floats, not named labels")
        return
    require_labels(source, "a pipeline with mixup or cutmix")
    if len(source.classes) < 2:
        raise ValueError("mixup and cutmix mix classes, but this data set has only one class: pass mixup=0, cutmix=0")
