"""A stand-in for albumentations 2 with flips, shifts and colour; tests write it as the package `albumentations`."""

from __future__ import annotations

import random
from typing import Any

import numpy as np


class DualTransform:
    """Moves pixels, boxes and points, in pixels of the image."""


class HorizontalFlip(DualTransform):
    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __repr__(self) -> str:
        return f"HorizontalFlip(p={self.p})"

    def draw(self, state: random.Random, shape: Any) -> Any:
        return state.random() < self.p

    def image(self, image: Any, drawn: Any) -> Any:
        return image[:, ::-1].copy() if drawn else image

    mask = image

    def boxes(self, boxes: Any, drawn: Any, width: int, height: int) -> Any:
        if drawn:
            boxes[:, [0, 2]] = width - boxes[:, [2, 0]]
        return boxes

    def points(self, points: Any, drawn: Any, width: int, height: int) -> Any:
        if drawn:
            points[:, 0] = width - 1 - points[:, 0]  # points count from the centre of the first pixel
        return points


class Shift(DualTransform):
    """Shifts whole pixels to the right and down, with black behind; masks get 7 there."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __repr__(self) -> str:
        return f"Shift(most={self.most})"

    def draw(self, state: random.Random, shape: Any) -> Any:
        return state.randrange(self.most + 1), state.randrange(self.most + 1)

    def image(self, image: Any, drawn: Any, fill: int = 0) -> Any:
        x, y = drawn
        moved = np.full_like(image, fill)
        moved[y:, x:] = image[: image.shape[0] - y, : image.shape[1] - x]
        return moved

    def mask(self, mask: Any, drawn: Any) -> Any:
        return self.image(mask, drawn, 7)

    def boxes(self, boxes: Any, drawn: Any, width: int, height: int) -> Any:
        boxes[:, :4] += np.tile(drawn, 2)
        return boxes

    def points(self, points: Any, drawn: Any, width: int, height: int) -> Any:
        points[:, :2] += drawn
        return points


class RandomCrop(Shift):
    """Cuts a window of a fixed size."""

    def __init__(self, height: int, width: int) -> None:
        self.height, self.width = height, width

    def __repr__(self) -> str:
        return f"RandomCrop({self.height}, {self.width})"

    def draw(self, state: random.Random, shape: Any) -> Any:
        return -state.randrange(shape[1] - self.width + 1), -state.randrange(shape[0] - self.height + 1)

    def image(self, image: Any, drawn: Any, fill: int = 0) -> Any:
        x, y = drawn
        return image[-y : self.height - y, -x : self.width - x].copy()

    mask = image


class Resize(HorizontalFlip):
    def image(self, image: Any, drawn: Any) -> Any:
        return image[::2, ::2].copy()

    mask = image


class Invert:
    def draw(self, state: random.Random, shape: Any) -> None:
        return None

    def __repr__(self) -> str:
        return "Invert()"

    def image(self, image: Any, drawn: Any) -> Any:
        return 255 - image


class Params:
    def __init__(self, format: str, label_fields: Any = None) -> None:
        self.format, self.label_fields = format, label_fields


class Processor:
    def __init__(self, params: Any) -> None:
        self.params = Params(**params) if isinstance(params, dict) else params


class Compose:
    def __init__(
        self, transforms: Any, bbox_params: Any = None, keypoint_params: Any = None, additional_targets: Any = None
    ) -> None:
        self.transforms, self.additional_targets = transforms, additional_targets or {}
        given = {"bboxes": bbox_params, "keypoints": keypoint_params}
        self.processors = {name: Processor(params) for name, params in given.items() if params}
        self._state = random.Random()

    def __repr__(self) -> str:
        return f"Compose({self.transforms})"

    def set_random_seed(self, seed: int) -> None:
        self._state.seed(seed)

    def __call__(self, **data: Any) -> dict[str, Any]:
        height, width = data["image"].shape[:2]
        rows = {name: self._read(name, data, width, height) for name in ("bboxes", "keypoints") if name in data}
        for each in self.transforms:
            drawn = each.draw(self._state, data["image"].shape)
            for name in ("image", *(name for name, kind in self.additional_targets.items() if kind == "image")):
                data[name] = each.image(data[name], drawn)
            if not isinstance(each, DualTransform):
                continue
            for name, kind in self.additional_targets.items():
                data[name] = each.mask(data[name], drawn) if kind == "mask" else data[name]
            if "mask" in data:
                data["mask"] = each.mask(data["mask"], drawn)
            if "masks" in data:
                data["masks"] = [each.mask(mask, drawn) for mask in data["masks"]]
            for name, move in (("bboxes", each.boxes), ("keypoints", each.points)):
                if name in rows:
                    rows[name] = move(rows[name], drawn, width, height)
        for name, values in rows.items():
            self._write(name, data, values, data["image"].shape[1], data["image"].shape[0])
        return data

    def _read(self, name: str, data: Any, width: int, height: int) -> Any:
        if name not in self.processors:
            raise ValueError(f"{name} need parameters")
        params, count = self.processors[name].params, len(data[name])
        columns = [np.array(data[name], np.float32).reshape(count, -1) if count else np.zeros((0, 9), np.float32)]
        for field in params.label_fields or ():
            assert len(data[field]) == count
            columns.append(np.array(data[field], np.float32).reshape(count, 1))
        rows = np.concatenate(columns, 1).astype(np.float64)
        if name == "keypoints":
            x, y = (params.format.index(letter) for letter in "xy")
            return np.concatenate((rows[:, [x, y]], rows), 1)  # prepends the position to the original row
        boxes = rows[:, :4] * (np.tile((width, height), 2) if params.format in ("yolo", "albumentations") else 1)
        if params.format in ("yolo", "cxcywh"):
            boxes = np.concatenate((boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2), 1)
        if params.format == "coco":
            boxes = np.concatenate((boxes[:, :2], boxes[:, :2] + boxes[:, 2:]), 1)
        return np.concatenate((boxes, rows[:, 4:]), 1)

    def _write(self, name: str, data: Any, rows: Any, width: int, height: int) -> None:
        params = self.processors[name].params
        sides = np.array((width, height), float)
        if name == "keypoints":
            rows = rows[((rows[:, :2] >= 0) & (rows[:, :2] < sides)).all(1)]
            x, y = (params.format.index(letter) for letter in "xy")
            rows[:, [2 + x, 2 + y]] = rows[:, :2]
            rows = rows[:, 2:]
        else:
            rows[:, :4] = rows[:, :4].clip(0, np.tile(sides, 2))
            rows = rows[(rows[:, 2:4] > rows[:, :2]).all(1)]
            low, high = rows[:, :2].copy(), rows[:, 2:4].copy()
            if params.format in ("yolo", "cxcywh"):
                rows[:, :4] = np.concatenate(((low + high) / 2, high - low), 1)
            if params.format == "coco":
                rows[:, 2:4] = high - low
            if params.format in ("yolo", "albumentations"):
                rows[:, :4] /= np.tile(sides, 2)
        labels = params.label_fields or ()
        inner = rows.shape[1] - len(labels)
        for number, field in enumerate(labels):
            data[field] = rows[:, inner + number].tolist()
        data[name] = rows[:, :inner].tolist()
