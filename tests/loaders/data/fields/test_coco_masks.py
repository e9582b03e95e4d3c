"""Masks drawn from COCO's polygons and run-length codes, compared with independent references."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from penstock.loaders import Masks, create_loader, with_fields
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.data.files.arrays import ArraySource
from penstock.pipelines import imagenet_eval

pytest.importorskip("pycocotools")
HEIGHT, WIDTH = 40, 56


class Named(ArraySource):
    """Images of one size called 0.jpg, 1.jpg, ..."""

    def name(self, index: int) -> bytes:
        return b"%d.jpg" % index


def images(count: int) -> Named:
    return Named(np.zeros((count, HEIGHT, WIDTH, 3), np.uint8), np.zeros(count, np.int64))


def write(path: Path, outlines: list[list[dict[str, Any]]]) -> Path:
    """Write a COCO file; outlines: the annotations of each image, without ids."""
    listed = [{"id": n, "file_name": f"{n}.jpg", "height": HEIGHT, "width": WIDTH} for n in range(len(outlines))]
    annotations = [
        {"id": 100 * n + k, "image_id": n, "category_id": 3, "bbox": [0, 0, 1, 1], **each}
        for n, of_image in enumerate(outlines)
        for k, each in enumerate(of_image)
    ]
    categories = [{"id": 9, "name": "dog"}, {"id": 3, "name": "cat"}]
    path.write_text(json.dumps({"images": listed, "categories": categories, "annotations": annotations}))
    return path


def runs_of(mask: npt.NDArray[np.bool_]) -> list[int]:
    """Return the run lengths of a mask by columns, starting with zeros."""
    counts, last = [0], False
    for pixel in mask.T.reshape(-1).tolist():
        if pixel != last:
            counts.append(0)
            last = pixel
        counts[-1] += 1
    return counts


def compress_runs(counts: list[int]) -> str:
    """Return COCO's text of run lengths: differences to the run two earlier, in groups of 5 bits, sign in the last."""
    text = ""
    for number, count in enumerate(counts):
        left = count - counts[number - 2] if number > 2 else count
        more = True
        while more:
            group = left & 31
            left >>= 5
            more = left != (-1 if group & 16 else 0)
            text += chr((group | 32 * more) + 48)
    return text


def find_inside(polygon: list[float]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which pixel centres lie in a polygon (even-odd), and which lie within a pixel of its edge."""
    y, x = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    points = np.array(polygon).reshape(-1, 2)
    within, near = np.zeros((HEIGHT, WIDTH), bool), np.zeros((HEIGHT, WIDTH), bool)
    for (x0, y0), (x1, y1) in zip(points, np.roll(points, -1, 0), strict=True):
        crosses = (y0 > y) != (y1 > y)
        within ^= crosses & (x < x0 + (y - y0) * (x1 - x0) / (y1 - y0 if y1 != y0 else 1))
        along = ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / max((x1 - x0) ** 2 + (y1 - y0) ** 2, 1e-9)
        along = along.clip(0, 1)
        near |= np.hypot(x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0)) <= 1
    return within, near


def test_run_lengths_are_drawn_exactly(tmp_path: Path) -> None:
    rng, wanted, outlines = np.random.default_rng(1), [], []
    for number in range(100):
        blocks = rng.random((HEIGHT // 4, WIDTH // 4)) < rng.random()
        mask = np.kron(blocks, np.ones((4, 4), bool)) ^ (rng.random((HEIGHT, WIDTH)) < 0.02)
        counts = runs_of(mask)
        coded = {"size": [HEIGHT, WIDTH], "counts": compress_runs(counts) if number % 2 else counts}
        outlines.append([{"segmentation": coded, "category_id": 9, "area": int(mask.sum())}])
        wanted.append(mask * 2)
    source = with_fields(images(100), mask=str(write(tmp_path / "a.json", outlines)))
    for number, mask in enumerate(wanted):
        assert np.array_equal(source.mask("mask", number), mask)  # type: ignore[attr-defined]


def test_polygons_are_drawn_to_within_a_pixel_of_their_edge(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    polygons = []
    for number in range(100):  # a triangle, then stars: no edge crosses another one
        angles = np.sort(rng.uniform(0, 2 * np.pi, rng.integers(5, 12) if number else 3))
        radius = rng.uniform(4, 25, len(angles))
        points = np.stack((28 + radius * np.cos(angles), 20 + radius * np.sin(angles)), 1).clip(0, (WIDTH, HEIGHT))
        polygons.append(points.round(2).reshape(-1).tolist())
    path = write(tmp_path / "a.json", [[{"segmentation": [polygon]}] for polygon in polygons])
    source = with_fields(images(100), mask=path)
    drawn = 0
    for number, polygon in enumerate(polygons):
        mask = source.mask("mask", number)  # type: ignore[attr-defined]
        within, near = find_inside(polygon)
        assert np.array_equal(mask[~near] > 0, within[~near])
        drawn += np.count_nonzero(mask[~near])
    assert drawn > 10_000


def square(x: int, y: int, side: int, **others: Any) -> dict[str, Any]:
    corners = [[x, y, x + side, y, x + side, y + side, x, y + side]]
    return {"segmentation": corners, "area": side * side, **others}


def test_classes_and_instances_are_equal_on_all_backends(tmp_path: Path) -> None:
    crowd = np.zeros((HEIGHT, WIDTH), bool)
    crowd[30:, 40:] = True
    counts = {"segmentation": {"size": [HEIGHT, WIDTH], "counts": runs_of(crowd)}, "iscrowd": 1, "area": 160}
    outlines = [square(4, 4, 6, category_id=9), square(2, 2, 20), counts]
    path = write(tmp_path / "a.json", [outlines, []])
    classes, instances = (np.zeros((2, HEIGHT, WIDTH), np.uint8) for _ in range(2))
    classes[0, 2:22, 2:22], classes[0, 4:10, 4:10], classes[0, 30:, 40:] = 1, 2, 1
    instances[0, 4:10, 4:10], instances[0, 2:22, 2:22] = 1, 2
    source = with_fields(images(2), mask=Masks(path), each=Masks(path, of="instances"))
    build_cache(source, tmp_path / "a.h5", workers=0)
    pipeline = imagenet_eval((HEIGHT, WIDTH), center_fraction=1.0)
    for served, backend in ((source, "torch"), (tmp_path / "a.h5", "hdf5"), (tmp_path / "a.h5", "dali")):
        settings = {"workers": 1, "pipeline": pipeline, "dtype": torch.uint8, "batch_size": 2}
        with create_loader(served, backend=backend, **settings) as loader:  # type: ignore[arg-type]
            (batch,) = loader.batches()
        assert np.array_equal(batch.fields["mask"].numpy(), classes)
        assert np.array_equal(batch.fields["each"].numpy(), instances)


@pytest.mark.parametrize("area", [None, 0, "none"])
def test_smaller_objects_cover_larger_ones_without_an_area(tmp_path: Path, area: Any) -> None:
    code = np.zeros((HEIGHT, WIDTH), bool)
    code[6:30, 6:30] = True
    large = [square(2, 2, 26), {"segmentation": {"size": [HEIGHT, WIDTH], "counts": runs_of(code)}}]
    for each in large:
        each["area"] = area
        if area == "none":
            del each["area"]
    path = write(tmp_path / "a.json", [[square(8, 8, 4, category_id=9), each] for each in large])
    source = with_fields(images(2), mask=Masks(path))
    for number in range(2):
        values, counts = np.unique(source.mask("mask", number)[6:28, 6:28], return_counts=True)  # type: ignore[attr-defined]
        assert (values.tolist(), counts.tolist()) == ([1, 2], [22 * 22 - 16, 16])


@pytest.mark.parametrize(
    ("outline", "text"),
    [
        ([[1, 1, 9, 9]], "annotation 0 must have polygons"),
        ([[1, 1, 9, 9, 5, 1e9]], "annotation 0 must have polygons"),
        (None, "annotation 0 must have polygons"),
        ({"size": [HEIGHT, WIDTH], "counts": [5, 5]}, "annotation 0 must have a run-length code of [40, 56]"),
        ({"size": [2, 2], "counts": "04"}, "annotation 0 must have a run-length code of [40, 56]"),
    ],
)
def test_invalid_outlines_are_refused(tmp_path: Path, outline: Any, text: str) -> None:
    path = write(tmp_path / "a.json", [[{"segmentation": outline}]])
    with pytest.raises(ValueError, match=re.escape(text)):
        with_fields(images(1), mask=path)
