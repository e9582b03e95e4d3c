"""Checks that masks, image targets, boxes and keypoints can follow the pixels of their images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.loaders.make.own.compose_fields import find_mirror, is_albumentations, takes_fields
from penstock.loaders.make.own_transform import OwnTransform, keeps_size, size_fault
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.messages.checked import checked_bool
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.spec import MAX_SIDE, ImagePipeline


def handed_fields(
    kinds: Mapping[str, FieldKind],
    functions: Sequence[object],
    batch_transform: object,
    *,
    has_geometry: bool,
    transform_moves: object,
) -> list[dict[str, FieldKind]]:
    """Return the kinds of the fields that the transform of each view receives with the image.

    Raises ValueError for functions that may move pixels if fields would not follow them.
    """
    moving = {name: kind for name, kind in kinds.items() if kind.rules.moves}
    names = ", ".join([*moving, *["geometry"] * has_geometry])
    stays = transform_moves is not None and not checked_bool("transform_moves", transform_moves)
    given = [function for function in functions if function is not None]
    if transform_moves is not None and not (names and (given or batch_transform is not None)):
        lacks = "transform or batch_transform" if names else "masks, image targets, boxes, keypoints or a geometry"
        raise ValueError(f"transform_moves has no effect without {lacks}: do not pass it")
    leave = "transform_moves=False if it does not move pixels"
    if names and batch_transform is not None and not stays:
        raise ValueError(f"batch_transform may move pixels, but {names} would not follow: pass {leave}")
    for function in given if names else ():
        if takes_fields(function):
            if has_geometry:
                raise ValueError("transform moves pixels, but geometry would not follow: do not pass with_geometry")
            if stays and batch_transform is None and len(given) == 1:
                raise ValueError(f"transform receives {names} and moves them: do not pass transform_moves=False")
        elif not stays and (has_geometry or not is_albumentations(function)):
            instead = "or an albumentations Compose, which receives all of them"
            if type(function).__module__.startswith("torchvision."):
                instead = "or use the pipeline's crops and flips instead of torchvision's"
            raise ValueError(f"transform may move pixels, but {names} would not follow: pass {leave}, {instead}")
    takes = [takes_fields(function) or (is_albumentations(function) and not stays) for function in functions]
    return [moving if each else {} for each in takes]


def check_moving(
    moving: Sequence[str], views: Sequence[ImagePipeline], transforms: Sequence[OwnTransform | None]
) -> None:
    """Raise ValueError for pipelines and size-changing transforms that the fields `moving` cannot follow.

    Warn about a transform that mirrors images without swapping left and right keypoints.
    """
    names = ", ".join(moving)
    if moving and views[0].augment.mixes:
        raise ValueError(f"{names} cannot follow mixup and cutmix, which mix two images: do not use them")
    for view, own in zip(views, transforms, strict=False):
        if not moving or own is None:
            continue
        if not keeps_size(own.part.shape, view.output_size):
            raise ValueError(size_fault(moving, own.part.shape, view.output_size))
        if view.augment.moves_pixels and own.fields is not None:
            raise ValueError(
                f"{names} cannot follow auto_augment after an albumentations transform: use only one of the two"
            )
        mirror = find_mirror(own.function)
        if own.fields is not None and own.fields.sided and mirror is not None:
            warn_user(
                f"transform mirrors images ({mirror}) but does not swap left and right of "
                f"{', '.join(own.fields.sided)}: remove it and pass ImagePipeline(flip=0.5), which "
                "swaps them, or pass swaps=() to the keypoints if they have no left and right points"
            )


def check_scaled(kinds: Mapping[str, FieldKind], views: Sequence[ImagePipeline]) -> None:
    """Raise ValueError for image targets that would be too large; warn of scaled ones whose images are resized."""
    scaled = {name: kind.scale for name, kind in kinds.items() if kind.scale > 1}
    for name, scale in scaled.items():
        largest = max((side for view in views for side in view.size or ()), default=0)
        if largest * scale > MAX_SIDE:
            raise ValueError(f"{name} with scale={scale} would have {largest * scale} pixels: at most {MAX_SIDE} work")
    resized = [view.crop for view in views if not (view.keeps_scale or view.has_own_scale)]
    if scaled and resized:
        names = ", ".join(f"{name} (scale={scale})" for name, scale in scaled.items())
        warn_user(
            f"crop={resized[0]!r} resizes images and {names}, so that their pixels are no longer those of the files: "
            "for super-resolution pass ImagePipeline(crop='random'), or for evaluation crop='center', "
            "center_fraction=None"
        )
