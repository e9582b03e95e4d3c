"""A folder of photos with fields of each kind, and the expected fields of each batch."""

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
    reference_target,
    shown_box,
)

from penstock.loaders import Boxes, ImageTargets, Keypoints, Masks, open_source, with_fields
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.front.batch import Batch
from penstock.pipelines.plan.augmentations import AugmentPlan, BatchKey, plan_augmentations
from penstock.pipelines.plan.crops import BatchPlan
from penstock.pipelines.spec import ImagePipeline

MIN_AREA = 0.1
SEED = 3  # of loaders with augmentations that move pixels
SWAPS = ((0, 1),)
DEPTH_OUTSIDE, SHARP_OUTSIDE = -1.0, (10, 200, 30)


class PhotoFields:
    """Photos under root/photos, masks, depths and sharp images below root, and everything else by index.

    The sharp images are JPEGs with twice the sides of the photos.

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
        self.depths = [rng.normal(0, 1, size[::-1]).astype(np.float32) for size in self.sizes]
        self.sharp: list[Any] = []
        for number, name in enumerate(self.names):
            path = root / "depths" / name.with_suffix(".npy")
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, self.depths[number])
            with Image.open(self.photos / name.with_suffix(".jpg")) as photo:
                large = photo.resize((2 * photo.width, 2 * photo.height), Image.Resampling.BICUBIC)
            data = simplejpeg.encode_jpeg(np.array(large), 92, "RGB", ("420", "444")[number % 2])
            path = root / "sharp" / name.with_suffix(".jpg")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            self.sharp.append(simplejpeg.decode_jpeg(data, "RGB"))

    def source(self, photos: Any = None, **others: Any) -> Source:
        return with_fields(
            self.photos if photos is None else photos,
            mask=Masks(self.root / "masks", ignore_index=254),
            boxes=Boxes(self.boxes, self.classes, min_area=MIN_AREA, padded=others.pop("padded", False)),
            keypoints=Keypoints(self.points, SWAPS),
            name=[str(name) for name in self.names],
            about=[{"number": number} for number in range(len(self.names))],
            depth=ImageTargets(self.root / "depths", interpolation="nearest", fill=DEPTH_OUTSIDE),
            sharp=ImageTargets(self.root / "sharp", scale=2, fill=SHARP_OUTSIDE),
            **others,
        )

    def check(
        self, batch: Batch, index: list[int] | None = None, pipelines: Sequence[ImagePipeline] = (), numbers: Any = None
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
        for name in ("mask", "boxes", "boxes_classes", "keypoints", "depth", "sharp"):
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
            sides = batch.places[row, 3], batch.places[row, 2]
            coordinates = batch.fields["patch_coord"][row].numpy()
            own = {name: values[row : row + 1] for name, values in fields.items()}
            own["mask"] = join_patches(masks[row], coordinates, sides, patch, 1)[None, ..., 0]
            depth = join_patches(fields["depth"][row].numpy(), coordinates, sides, patch, 1)
            sharp = join_patches(fields["sharp"][row].numpy(), coordinates, sides, patch * 2, 3)
            own |= {
                name: torch.from_numpy(each).permute(2, 0, 1)[None]
                for name, each in (("depth", depth), ("sharp", sharp))
            }
            of_row = BatchPlan._make(part[row : row + 1] for part in plan)
            self._check_view(own, [number], of_row, (int(sides[0]), int(sides[1])), None)

    def _check_view(
        self,
        fields: dict[str, Any],
        index: list[int],
        plan: BatchPlan,
        size: tuple[int, ...],
        drawn: AugmentPlan | None,
    ) -> None:
        out = self.output or size
        assert list(fields) == ["mask", "boxes", "boxes_classes", "keypoints", "name", "about", "depth", "sharp"]
        assert (fields["depth"].dtype, fields["sharp"].dtype) == (torch.float32, torch.uint8)
        for row, number in enumerate(index):
            if number < 0:
                assert (fields["mask"][row] == 254).all()
                assert not fields["keypoints"][row].any()
                assert not len(fields["boxes"][row])
                assert (fields["name"][row], fields["about"][row]) == ("", None)
                assert (fields["depth"][row] == DEPTH_OUTSIDE).all()
                assert (fields["sharp"][row] == torch.tensor(SHARP_OUTSIDE)[:, None, None]).all()
                continue
            assert (fields["name"][row], fields["about"][row]) == (str(self.names[number]), {"number": number})
            moves = moves_of(drawn, row)
            mask = move_mask_by_pillow(reference_mask(self.masks[number], plan, row, out, 254), moves, 254)
            assert np.array_equal(fields["mask"][row], mask)
            depth = reference_mask(self.depths[number], plan, row, out, DEPTH_OUTSIDE)
            depth = move_mask_by_pillow(depth, moves, DEPTH_OUTSIDE)
            assert np.array_equal(fields["depth"][row, 0], depth)
            sharp = reference_target(self.sharp[number], 2, plan, row, out, SHARP_OUTSIDE, moves)
            off = np.abs(fields["sharp"][row].permute(1, 2, 0).numpy().astype(int) - sharp)
            assert off.max() <= bool(moves)  # the centre of a rotation is rounded otherwise at twice the size
            assert (off > 0).mean() < 0.001
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
        shown, boxes, classes = shown_box(plan, row, out), [], []
        for box, class_ in zip(self.boxes[number].tolist(), self.classes[number], strict=True):
            cut = [min(max(end, shown[at % 2]), shown[2 + at % 2]) for at, end in enumerate(box)]
            area, left = map(area_of, (box, cut))
            first, second = (apply(matrix(plan, row, out), *cut[at : at + 2]) for at in (0, 2))
            ends, left = move_box(moves, [*map(min, first, second), *map(max, first, second)], left, out)
            if left > 0 and left >= MIN_AREA * area:
                boxes.append([float(nearest(end)) for end in ends])
                classes.append(class_)
        return boxes, classes

    def _points(self, number: int, plan: BatchPlan, row: int, out: tuple[int, ...], moves: list[Any]) -> Any:
        left, top, right, bottom = shown_box(plan, row, out)
        map_, points = matrix(plan, row, out), []
        for px, py, seen in self.points[number].tolist():
            inside = seen and left <= px < right and top <= py < bottom
            at = apply(map_, px, py)
            for move in moves:
                at = move_point(move, float(at[0]), float(at[1]), out)
                inside = inside and 0 <= at[0] < out[1] and 0 <= at[1] < out[0]
            points.append([*(float(nearest(end)) for end in at), seen] if inside else [0.0] * 3)
        is_mirrored = map_[0][0] * map_[1][1] - map_[0][1] * map_[1][0] < 0
        return [points[1], points[0], points[2]] if is_mirrored else points


def join_patches(patches: Any, coordinates: Any, sides: Any, patch: int, channels: int) -> Any:
    """Return the image that was cut into `patches`, [height, width, channels]."""
    rows, columns = (int(side) // (patch if channels == 1 else patch // 2) for side in sides)
    whole = np.zeros((rows * patch, columns * patch, channels), patches.dtype)
    for at in range(rows * columns):
        top, left = (coordinates[at] * patch).tolist()
        whole[top : top + patch, left : left + patch] = patches[at].reshape(patch, patch, channels)
    return whole
