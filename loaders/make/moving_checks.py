"""Refuses settings under which masks, boxes and keypoints would not lie where their pixels are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.loaders.make.compose_fields import find_mirror, is_albumentations, takes_fields
from penstock.loaders.make.own_transform import OwnTransform, keeps_size, size_fault
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.messages.checked import checked_bool
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.spec import ImagePipeline


def handed_fields(
    kinds: Mapping[str, FieldKind],
    functions: Sequence[object],
    batch_transform: object,
    *,
    has_geometry: bool,
    transform_moves: object,
) -> list[dict[str, FieldKind]]:
    """Return for the transform of each view the kinds of the fields that it is handed with the image.

    Raises ValueError for functions that may move pixels next to fields that do not follow them.
    """
    moving = {name: kind for name, kind in kinds.items() if kind.rules.moves}
    names = ", ".join([*moving, *["geometry"] * has_geometry])
    stays = transform_moves is not None and not checked_bool("transform_moves", transform_moves)
    given = [function for function in functions if function is not None]
    if transform_moves is not None and not (names and (given or batch_transform is not None)):
        lacks = "transform or batch_transform" if names else "masks, boxes, keypoints or a geometry"
        raise ValueError(f"transform_moves says nothing without {lacks}: leave it out")
    leave = "transform_moves=False if it leaves every pixel in its place"
    if names and batch_transform is not None and not stays:
        raise ValueError(f"batch_transform may move pixels, which {names} would not follow: pass {leave}")
    for function in given if names else ():
        if takes_fields(function):
            if has_geometry:
                raise ValueError("transform moves pixels, which geometry would not follow: leave with_geometry out")
            if stays and batch_transform is None and len(given) == 1:
                raise ValueError(f"transform is handed {names} and moves them: leave transform_moves=False out")
        elif not stays and (has_geometry or not is_albumentations(function)):
            instead = "or a Compose of albumentations, which is handed all of them"
            if type(function).__module__.startswith("torchvision."):
                instead = "or take the pipeline's own crops and flips in place of torchvision's"
            raise ValueError(f"transform may move pixels, which {names} would not follow: pass {leave}, {instead}")
    takes = [takes_fields(function) or (is_albumentations(function) and not stays) for function in functions]
    return [moving if each else {} for each in takes]


def check_moving(
    moving: Sequence[str], views: Sequence[ImagePipeline], transforms: Sequence[OwnTransform | None]
) -> None:
    """Raise ValueError for pipelines and for transforms of another size that the fields `moving` cannot follow.

    Warn of a transform that makes mirror images and leaves left and right keypoints as they are.
    """
    names = ", ".join(moving)
    if moving and views[0].augment.mixes:
        raise ValueError(f"{names} cannot follow mixup and cutmix, which mix two images: leave these out")
    for view, own in zip(views, transforms, strict=False):
        if not moving or own is None:
            continue
        if not keeps_size(own.part.shape, view.size):
            raise ValueError(size_fault(moving, own.part.shape, view.size))
        if view.augment.moves_pixels and own.fields is not None:
            raise ValueError(
                f"{names} cannot follow auto_augment after a transform of albumentations: leave one of the two out"
            )
        mirror = find_mirror(own.function)
        if own.fields is not None and own.fields.sided and mirror is not None:
            warn_user(
                f"transform makes mirror images ({mirror}), in which it leaves left and right of "
                f"{', '.join(own.fields.sided)} as they are: take it out and pass ImagePipeline(flip=0.5), which "
                "exchanges them, or pass swaps=() to the keypoints if no point has a side"
            )
