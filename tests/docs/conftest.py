"""Data for the pages and examples of the documentation."""

from __future__ import annotations

import csv
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from penstock.bench.probe.data.demo_set import synthesise


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the data that the pages name."""
    folder = tmp_path_factory.mktemp("docs")
    synthesise(folder / "imagenet", images=10, validation=4, classes=2, workers=0)
    (folder / "demo").symlink_to("imagenet")
    shutil.copytree(folder / "imagenet" / "train", folder / "photos")
    images = sorted((folder / "photos").rglob("*.jpg"))
    _write_table(folder, images)
    _write_tars(folder, images)
    _write_fields(folder, images)
    _write_bands(folder)
    _write_captions(folder, images)
    _write_targets(folder, images)
    return folder


def _write_table(folder: Path, images: list[Path]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open(folder / "train.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "kind", "price", "stars"])
        table.writerows([p.relative_to(folder), p.parent.name, n + 0.5, n - 2] for n, p in enumerate(images))
    shutil.copy(folder / "train.csv", folder / "val.csv")
    columns = {"image": [p.read_bytes() for p in images], "label": [n % 2 for n in range(len(images))]}
    pq.write_table(pa.table(columns), folder / "data.parquet")


def _write_tars(folder: Path, images: list[Path]) -> None:
    for number in range(2):
        with tarfile.open(folder / f"train-{number:04d}.tar", "w") as tar:
            for n, image in enumerate(images[number::2]):
                (folder / "x.cls").write_text(str(n % 2))
                (folder / "x.json").write_text(json.dumps({"price": n + 0.5}))
                tar.add(image, f"{number}{n:03d}.jpg")
                tar.add(folder / "x.cls", f"{number}{n:03d}.cls")
                tar.add(folder / "x.json", f"{number}{n:03d}.json")


def _write_bands(folder: Path) -> None:
    """Write scenes of five channels, and samples with a file for each of four bands.

    They are arrays: the content of a file decides how it is read, and the extra `tiff` may be missing here.
    """
    rng = np.random.default_rng(0)
    with tarfile.open(folder / "bands.tar", "w") as tar:
        for n in range(8):
            scene = folder / "scenes" / "ab"[n % 2] / f"{n}.tif"
            scene.parent.mkdir(parents=True, exist_ok=True)
            with open(scene, "wb") as file:
                np.save(file, rng.integers(0, 4000, (40, 50, 5), np.uint16))
            for band in ("b02", "b03", "b04", "b08"):
                path = folder / "bands" / band / f"{n}.tif"
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "wb") as file:
                    np.save(file, rng.integers(0, 4000, (40, 50), np.uint16))
                tar.add(path, f"{n}.{band}.tif")


def _write_captions(folder: Path, images: list[Path]) -> None:
    for number in range(2):
        with tarfile.open(folder / f"pairs-{number:04d}.tar", "w") as tar:
            for n, image in enumerate(images[number::2]):
                (folder / "x.txt").write_text(f"photo {n} of tar {number}")
                (folder / "x.json").write_text(json.dumps({"captions": [f"caption {x} of {n}" for x in "abc"]}))
                tar.add(image, f"{number}{n:03d}.jpg")
                tar.add(folder / "x.txt", f"{number}{n:03d}.txt")
                tar.add(folder / "x.json", f"{number}{n:03d}.json")
    for image in images:
        image.with_suffix(".txt").write_text(f"a photo named {image.stem}")
    names = [image.relative_to(folder / "photos").as_posix() for image in images]
    listed = [{"id": n, "file_name": name} for n, name in enumerate(names)]
    captions = [{"id": n, "image_id": n // 2, "caption": f"caption {n}"} for n in range(2 * len(images))]
    (folder / "captions.json").write_text(json.dumps({"images": listed, "annotations": captions}))


def _write_targets(folder: Path, images: list[Path]) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for path in images:
        name = path.relative_to(folder / "photos").with_suffix(".png")
        places = [folder / part / name for part in ("low", "high", "depth")]
        for place in places:
            place.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            Image.fromarray(rng.integers(0, 65536, image.size[::-1]).astype(np.uint16)).save(places[2])
            low = image.resize((60, 52))
        low.save(places[0])
        low.resize((240, 208)).save(places[1])


def _write_fields(folder: Path, images: list[Path]) -> None:
    from PIL import Image

    listed, boxes = [], []
    for n, path in enumerate(images):
        name = path.relative_to(folder / "photos")
        mask = folder / "masks" / name.with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            width, height = image.size
        Image.fromarray(np.full((height, width), n % 3, np.uint8)).save(mask)
        listed.append({"id": n, "file_name": name.as_posix(), "width": width, "height": height})
        box = [width // 4, height // 4, width // 2, height // 2]
        whole = {"bbox": box, "area": box[2] * box[3], "iscrowd": 0}
        boxes.append({"id": n + 1, "image_id": n, "category_id": 1, **whole})  # pycocotools treats id 0 as no match
    coco = {"images": listed, "annotations": boxes, "categories": [{"id": 1, "name": "thing"}]}
    (folder / "instances.json").write_text(json.dumps(coco))
