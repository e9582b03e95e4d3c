"""Makes the tiles of a picture from a finished batch: levels again, fields of each row, and labels as text."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.loaders.data.sources.contract import ONE_CLASS
from penstock.loaders.show.drawing import Box, Mask, View
from penstock.loaders.show.picture import Tile
from penstock.pipelines.batch.stage import BatchStage, PlainStage
from penstock.pipelines.fields.field_kinds import FieldKind, of_kind

_MOST_NAMES = 3  # of the classes of one label
_MOST_NUMBERS = 6  # of a vector
_UNLABELLED = (os.fsdecode(ONE_CLASS),)
_GIVEN_UP = np.full((32, 32, 3), 128, np.uint8)  # drawn for a result that is not an image
Stage = BatchStage | PlainStage
Kinds = Mapping[str, FieldKind]


def make_tiles(
    batch: Any,
    stages: Sequence[Stage],
    kinds: Kinds,
    classes: Sequence[str],
    label_classes: Mapping[str, Sequence[str]],
) -> list[Tile]:
    """Return a tile for each row of a Batch that has a sample.

    Args:
        stages: the batch stage of each view.
        kinds: the fields by name.
        classes: class names by class number; () for data without class numbers.
        label_classes: class names of other labels, by the label's name ("" for a single label).
    """
    views = batch.images if isinstance(batch.images, tuple) else (batch.images,)
    tiles = []
    for row in np.flatnonzero(batch.index >= 0).tolist():
        drawn: list[View] = []
        for number, (images, stage) in enumerate(zip(views, stages, strict=True)):
            fields = {
                name: value[number] if len(views) > 1 and isinstance(value, tuple) else value
                for name, value in batch.fields.items()
            }
            drawn += _views_of(stage, images[row], row, fields, kinds)
        lines = [*_label_lines(batch.labels, row, classes, label_classes), batch.names[row]]
        tiles.append(Tile(tuple(drawn), (*lines, *_field_lines(batch.fields, row, kinds))))
    return tiles


def _views_of(stage: Stage, image: torch.Tensor, row: int, fields: Mapping[str, Any], kinds: Kinds) -> list[View]:
    """Return an image with its fields, and the fields of its row that are images."""
    pixels = _levels(stage, image)
    cells = None
    if "patch_valid" in fields:
        cells = fields["patch_coord"][row][fields["patch_valid"][row]].cpu().numpy()
    if cells is not None:
        pixels = _join_patches(pixels, cells)
    masks = tuple(
        Mask(value if cells is None else _join_patches(value[..., None], cells)[..., 0], kind.ignore_index)
        for name, kind in of_kind(kinds, "mask").items()
        for value in [_numbers(fields[name][row])]
    )
    boxes: list[Box] = []
    points = [_numbers(fields[name][row]) for name in of_kind(kinds, "keypoints")]
    for name, kind in of_kind(kinds, "boxes").items():
        most = int(fields[f"{name}_lengths"][row]) if kind.padded else None
        corners, numbers = (_numbers(fields[each][row])[:most] for each in (name, f"{name}_classes"))
        names = [each.decode("utf-8", "replace") for each in kind.classes]
        for each, number in zip(corners.tolist(), numbers.tolist(), strict=True):
            boxes.append(Box(tuple(each), number, _name_of(number - kind.first_class, names)))
        for other in of_kind(kinds, "keypoints", name):
            points += list(_numbers(fields[other][row])[:most])
    more = [View(_target_levels(kind, fields[name][row])) for name, kind in of_kind(kinds, "image").items()]
    return [View(pixels, masks, tuple(boxes), tuple(points)), *more]


def _numbers(value: Any) -> npt.NDArray[Any]:
    return value.detach().cpu().numpy()  # type: ignore[no-any-return]


def _levels(stage: Stage, image: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return an image of a batch as uint8 [height, width, 3]; patches as [length, pixels, 3]."""
    levels = stage.levels(image).numpy()
    if levels.ndim == 2:
        levels = levels[..., None]
    if levels.ndim != 3:
        return _GIVEN_UP
    return levels[..., :3] if levels.shape[-1] >= 3 else levels[..., :1].repeat(3, -1)


def _target_levels(kind: FieldKind, value: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return an image target [channels, height, width] as uint8 [height, width, 3]; other types are stretched."""
    assert kind.target is not None
    if kind.target.mean:
        mean, std = (value.new_tensor(each)[:, None, None] for each in (kind.target.mean, kind.target.std))
        value = value * std + mean
    value = value.round().clamp(0, 255).to(torch.uint8) if kind.dtype == "uint8" else value
    return _levels(PlainStage(value.dtype, value.dtype, value.device), value)


def _join_patches(patches: npt.NDArray[Any], cells: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return the image of patches [length, pixels, channels] at `cells`, (row, column) of the first ones."""
    side = math.isqrt(patches.shape[1])
    height, width = (cells.max(0) + 1).tolist() if len(cells) else (1, 1)
    image = np.zeros((height, side, width, side, patches.shape[2]), patches.dtype)
    image[cells[:, 0], :, cells[:, 1]] = patches[: len(cells)].reshape(-1, side, side, patches.shape[2])
    return image.reshape(height * side, width * side, patches.shape[2])


def _label_lines(
    labels: Any, row: int, classes: Sequence[str], label_classes: Mapping[str, Sequence[str]]
) -> list[str]:
    if isinstance(labels, dict):
        return [f"{name}: {label_text(part[row], label_classes.get(name, ()))}" for name, part in labels.items()]
    names = classes or label_classes.get("", ())
    if labels is None or tuple(names) == _UNLABELLED:
        return []
    text = label_text(labels[row], names)
    return text.split(", ") if labels.is_floating_point() and labels.ndim > 1 and names else [text]


def _field_lines(fields: Mapping[str, Any], row: int, kinds: Kinds) -> list[str]:
    """Return the texts and numbers of a row, and the values of its masks."""
    lines = []
    for name, kind in kinds.items():
        if kind.kind == "mask":
            first = fields[name][0] if isinstance(fields[name], tuple) else fields[name]
            found = np.unique(_numbers(first[row])).tolist()
            more = ", ..." * (len(found) > _MOST_NUMBERS)
            lines.append(f"{name}: {', '.join(map(str, found[:_MOST_NUMBERS]))}{more}")
        elif not kind.rules.moves and kind.kind != "bytes":
            value = fields[name][row]
            lines.append(f"{name}: {label_text(value, ()) if isinstance(value, torch.Tensor) else value}")
    return lines


def label_text(label: torch.Tensor, names: Sequence[str]) -> str:
    """Return one label as text: a class name, the classes of a mixed label or a set, or numbers."""
    if label.ndim == 0:
        value = label.item()
        if math.isnan(value) or value == -1:
            return "no label" if math.isnan(value) or not label.is_floating_point() else f"{value:g}"
        return f"{value:.5g}" if label.is_floating_point() else _name_of(int(value), names)
    values = label.flatten().tolist()
    if label.is_floating_point() and len(names) == len(values):
        first = sorted(((share, number) for number, share in enumerate(values) if share > 0), reverse=True)
        is_set = all(share == 1 for share, _ in first)
        texts = [names[number] if is_set else f"{names[number]} {share:.2f}" for share, number in first[:_MOST_NAMES]]
        return (", ".join(texts) or "none") + ", ..." * (len(first) > _MOST_NAMES)
    return ", ".join(f"{value:.4g}" for value in values[:_MOST_NUMBERS]) + ", ..." * (len(values) > _MOST_NUMBERS)


def _name_of(number: int, names: Sequence[str]) -> str:
    return names[number] if 0 <= number < len(names) else str(number)
