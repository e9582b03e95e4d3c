"""COCO's own evaluation of served boxes: mapped back to the image, they have an average precision of 1."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from turned_photos import STORED

from penstock.loaders import Coco, create_loader, with_fields
from penstock.pipelines.spec import ImagePipeline

pytest.importorskip("pycocotools")
NUM_PHOTOS = 16
PIPELINES: dict[str, dict[str, Any]] = {
    "letterbox": {"crop": "letterbox", "size": (96, 160)},
    "flips": {"crop": "letterbox", "size": (160, 96), "flip": 0.5, "vertical_flip": 0.5},
    "turns": {"crop": "letterbox", "size": (128, 128), "rotate90": 0.8},
    "a crop": {"crop": "center", "size": (120, 120)},
    "a random crop": {"crop": "random_resized", "size": (120, 110), "scale": (0.9, 1.0), "ratio": (0.9, 1.1)},
    "scale jitter": {"crop": "scale_jitter", "size": (300, 300), "jitter": (0.5, 1.0)},
}
ENGINES: dict[str, dict[str, Any]] = {
    "threads": {"workers": 2, "workers_are": "threads"},
    "hdf5": {"backend": "hdf5", "workers": 0},
    "dali": {"backend": "dali", "workers": 1},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos in all EXIF orientations with objects in the middle, and a file with gaps in its ids and a crowd."""
    root, rng = tmp_path_factory.mktemp("coco"), np.random.default_rng(0)
    (root / "photos").mkdir()
    images, boxes = [], []
    for number in range(NUM_PHOTOS):
        width, height = (int(side) for side in rng.integers(240, 400, 2))
        way, exif = STORED[number % 8 + 1], Image.Exif()
        exif[0x0112] = number % 8 + 1
        image = Image.fromarray(rng.integers(0, 255, (height, width, 3)).astype(np.uint8))
        image = image if way is None else image.transpose(way)
        image.save(root / "photos" / f"{number:02}.jpg", exif=exif)
        images.append({"id": 1000 - 7 * number, "file_name": f"{number:02}.jpg", "width": width, "height": height})
        for _ in range(3):
            side, left, top = (float(value) for value in rng.uniform((40, 0, 0), (55, 15, 15)))
            bbox = [width / 2 - 35 + left, height / 2 - 35 + top, side, side]
            kind = {"category_id": int(rng.choice([3, 17, 90])), "iscrowd": 0}
            boxes.append({"id": len(boxes) + 1, "image_id": 1000 - 7 * number, "bbox": bbox, "area": side**2, **kind})
        crowd = {"bbox": [0, 0, 50, 50], "area": 2500, "category_id": 3, "iscrowd": 1}
        boxes.append({"id": len(boxes) + 1, "image_id": 1000 - 7 * number, **crowd})
    kinds = [{"id": number, "name": name} for number, name in ((90, "toothbrush"), (3, "car"), (17, "cat"))]
    document = {"info": {}, "images": images, "annotations": boxes, "categories": kinds}
    (root / "instances.json").write_text(json.dumps(document))
    return root


def precision(truth: Path, results: list[dict[str, Any]]) -> float:
    """Return COCO's average precision of boxes."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO(str(truth))
        evaluation = COCOeval(known, known.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


def results_of(loader: Any, shift: float = 0.0) -> list[dict[str, Any]]:
    """Return the results of a detector that finds each served box, shifted by `shift` pixels."""
    categories, found = loader.categories["boxes"], []
    for batch in loader:
        for row, image_id in enumerate(batch["image_ids"].tolist()):
            if image_id < 0:
                continue
            boxes = batch["geometry"].boxes_to_image(row, batch["boxes"][row] + shift)
            for (x1, y1, x2, y2), label in zip(boxes.tolist(), batch["boxes_classes"][row].tolist(), strict=True):
                bbox, category_id = [x1, y1, x2 - x1, y2 - y1], categories[label].id
                found.append({"image_id": image_id, "category_id": category_id, "bbox": bbox, "score": 0.5})
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_served_boxes_have_an_average_precision_of_1(data: Path, engine: str, pipeline: str) -> None:
    source = with_fields(data / "photos", coco=Coco(data / "instances.json", first_class=1))
    settings = ImagePipeline(**{"flip": 0.0, **PIPELINES[pipeline], "exif": "apply"})
    options = {"with_geometry": True, "dtype": torch.uint8, "batch_size": 5, "drop_last": False, "pad": True}
    cache = {"cache": data / "images.h5"} if engine == "hdf5" else {}
    with create_loader(source, pipeline=settings, **options, **ENGINES[engine], **cache) as loader:
        assert loader.categories == {"boxes": {1: (3, "car"), 2: (17, "cat"), 3: (90, "toothbrush")}}
        results = results_of(loader)
    assert len(results) == 3 * NUM_PHOTOS
    assert precision(data / "instances.json", results) == pytest.approx(1, abs=1e-6)


def test_the_comparison_can_fail(data: Path) -> None:
    source = with_fields(data / "photos", coco=Coco(data / "instances.json", first_class=1))
    settings = ImagePipeline(size=(96, 160), crop="letterbox", flip=0.0, exif="apply")
    with create_loader(source, pipeline=settings, batch_size=4, workers=0, with_geometry=True) as loader:
        results = results_of(loader, shift=2.0)
    assert precision(data / "instances.json", results) < 0.9
