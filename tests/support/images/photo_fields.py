"""A folder of photos with masks, boxes, keypoints and text, and the expected fields of each batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from photo_folder import write_folder
from PIL import Image
from placed_fields import (
    apply,
    area_of,
    matrix,
    move_box,
    move_mask_by_pillow,
    move_point,
    moves_of,
    nearest,
    reference_mask,
)

from penstock.loaders import Boxes, Keypoints, Masks, open_source, with_fields
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.front.batch import Batch
from penstock.pipelines.plan.augmentations import AugmentPlan, BatchKey, plan_augmentations
from penstock.pipelines.plan.crops import BatchPlan
from penstock.pipelines.spec import ImagePipeline

MIN_AREA = 0.1
SEED = 3  # of loaders with augmentations that move pixels
SWAPS = ((0, 1),)


class PhotoFields:
    """Photos under root/photos, masks under root/masks, and everything else by index.

    Attributes:
        output: (height, width) of the images before a transform; None: as in the batch.
    """

    output: tuple[int, int] | None = None

    def __init__(self, root: Path, count: int) -> None:
        self.root, self.photos = root, write_folder(root / "photos", count)
        source = open_source(self.photos)
        self.names = [
            Path(source.path(index).decode()).relative_to(self.photos).with_suffix("") for index in range(count)
        ]
        headers = [simplejpeg.decode_jpeg_header(source.read(index)) for index in range(count)]
        self.sizes = [(width, height) for height, width, *_ in headers]
        rng = np.random.default_rng(0)
        self.masks = [rng.integers(0, 255, size[::-1]).astype(np.uint8) for size in self.sizes]
        sides = [np.tile(size, 2) for size in self.sizes]
        self.boxes = [
            (np.sort(rng.uniform(0, 1, (number % 4, 2, 2)), 1).reshape(-1, 4) * side).astype(np.float32)
            for number, side in enumerate(sides)
        ]
        self.classes = [list(range(len(boxes))) for boxes in self.boxes]
        self.points = np.stack([rng.uniform(0, 1, (3, 3)) * (*size, 3) for size in self.sizes]).astype(np.float32)
        self.points[..., 2] = self.points[..., 2].astype(int)
        for name, mask in zip(self.names, self.masks, strict=True):
            path = root / "masks" / name.with_suffix(".png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(mask).save(path)

    def source(self, photos: Any = None, **others: Any) -> Source:
        return with_fields(
            self.photos if photos is None else photos,
            mask=Masks(self.root / "masks", ignore_index=254),
            boxes=Boxes(self.boxes, self.classes, min_area=MIN_AREA, padded=others.pop("padded", False)),
            keypoints=Keypoints(self.points, SWAPS),
            name=[str(name) for name in self.names],
            about=[{"number": number} for number in range(len(self.names))],
            **others,
        )

    def check(
        self,
        batch: Batch,
        index: list[int] | None = None,
        pipelines: Sequence[ImagePipeline] = (),
        numbers: Any = None,
    ) -> None:
        """Compare the fields of a batch with ones computed row by row.

        index: the photo of each row; pipelines: per view, if their augmentations move pixels; numbers: samples of the
        augmentations, by default batch.index.
        """
        key = BatchKey(SEED, batch.epoch, batch.index if numbers is None else numbers)
        moves = [plan_augmentations(each.augment, each.size, key._replace(view=i)) for i, each in enumerate(pipelines)]
        plan = BatchPlan(batch.windows, batch.flips, batch.places, batch.turns)
        index = batch.index.tolist() if index is None else index
        if isinstance(batch.images, torch.Tensor):
            self._check_view(batch.fields, index, plan, tuple(batch.images.shape[2:]), moves[0] if moves else None)
            return
        for name in ("mask", "boxes", "boxes_classes", "keypoints"):
            assert (type(batch.fields[name]), len(batch.fields[name])) == (tuple, len(batch.images))
        for view, images in enumerate(batch.images):
            fields = {name: each[view] if isinstance(each, tuple) else each for name, each in batch.fields.items()}
            of_view = BatchPlan._make(part[:, view] for part in plan)
            self._check_view(fields, index, of_view, tuple(images.shape[2:]), moves[view] if moves else None)

    def check_patches(self, batch: Batch, patch: int) -> None:
        """Compare the fields of a batch of patches, after each row is joined again, with ones computed row by row."""
        plan = BatchPlan(batch.windows, batch.flips, batch.places, batch.turns)
        fields = {name: values for name, values in batch.fields.items() if not name.startswith("patch_")}
        masks = batch.fields["mask"].numpy()
        assert masks.shape == (*batch.images.shape[:2], patch * patch)
        assert (masks[~batch.fields["patch_valid"].numpy()] == 254).all()
        for row, number in enumerate(batch.index.tolist()):
            width, height = batch.places[row, 2:].tolist()
            whole = np.full((height, width), 254, np.uint8)
            for at in range(width * height // (patch * patch)):
                top, left = (batch.fields["patch_coord"][row, at] * patch).tolist()
                whole[top : top + patch, left : left + patch] = masks[row, at].reshape(patch, patch)
            own = {name: values[row : row + 1] for name, values in fields.items()} | {"mask": whole[None]}
            self._check_view(own, [number], BatchPlan._make(part[row : row + 1] for part in plan), whole.shape, None)

    def _check_view(
        self,
        fields: dict[str, Any],
        index: list[int],
        plan: BatchPlan,
        size: tuple[int, ...],
        drawn: AugmentPlan | None,
    ) -> None:
        out = self.output or size
        assert list(fields) == ["mask", "boxes", "boxes_classes", "keypoints", "name", "about"]
        for row, number in enumerate(index):
            if number < 0:
                assert (fields["mask"][row] == 254).all()
                assert not fields["keypoints"][row].any()
                assert not len(fields["boxes"][row])
                assert (fields["name"][row], fields["about"][row]) == ("", None)
                continue
            assert (fields["name"][row], fields["about"][row]) == (str(self.names[number]), {"number": number})
            moves = moves_of(drawn, row)
            mask = move_mask_by_pillow(reference_mask(self.masks[number], plan, row, out, 254), moves, 254)
            assert np.array_equal(fields["mask"][row], mask)
            boxes, classes = self._boxes(number, plan, row, out, moves)
            assert fields["boxes"][row].dtype == torch.float32
            assert fields["boxes_classes"][row].tolist() == classes
            points = self._points(number, plan, row, out, moves)
            if moves:
                assert np.allclose(fields["boxes"][row], np.reshape(boxes, (-1, 4)), rtol=0, atol=1e-4)
                assert np.allclose(fields["keypoints"][row], points, rtol=0, atol=1e-4)
            else:
                assert (fields["boxes"][row].tolist(), fields["keypoints"][row].tolist()) == (boxes, points)

    def _boxes(
        self, number: int, plan: BatchPlan, row: int, out: tuple[int, ...], moves: list[Any]
    ) -> tuple[Any, list[int]]:
        x, y, w, h = plan.windows[row].tolist()
        boxes, classes = [], []
        for box, class_ in zip(self.boxes[number].tolist(), self.classes[number], strict=True):
            cut = [min(max(end, low), low + side) for end, low, side in zip(box, (x, y) * 2, (w, h) * 2, strict=True)]
            area, left = map(area_of, (box, cut))
            first, second = (apply(matrix(plan, row, out), *cut[at : at + 2]) for at in (0, 2))
            ends, left = move_box(moves, [*map(min, first, second), *map(max, first, second)], left, out)
            if left > 0 and left >= MIN_AREA * area:
                boxes.append([float(nearest(end)) for end in ends])
                classes.append(class_)
        return boxes, classes

    def _points(self, number: int, plan: BatchPlan, row: int, out: tuple[int, ...], moves: list[Any]) -> Any:
        x, y, w, h = plan.windows[row].tolist()
        map_, points = matrix(plan, row, out), []
        for px, py, seen in self.points[number].tolist():
            inside = seen and x <= px < x + w and y <= py < y + h
            at = apply(map_, px, py)
            for move in moves:
                at = move_point(move, float(at[0]), float(at[1]), out)
                inside = inside and 0 <= at[0] < out[1] and 0 <= at[1] < out[0]
            points.append([*(float(nearest(end)) for end in at), seen] if inside else [0.0] * 3)
        is_mirrored = map_[0][0] * map_[1][1] - map_[0][1] * map_[1][0] < 0
        return [points[1], points[0], points[2]] if is_mirrored else points
