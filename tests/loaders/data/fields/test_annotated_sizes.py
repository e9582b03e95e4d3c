"""Boxes lie on their objects for any EXIF orientation and annotated size, or their image is refused.

The reference is the served image itself: each photo contains one red rectangle, which is located in the pixels.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from turned_photos import find_red, make_photo

from penstock.loaders import (
    Boxes,
    Coco,
    Encoding,
    Keypoints,
    LoaderError,
    Masks,
    create_loader,
    open_source,
    with_fields,
)
from penstock.loaders.cache_build.build import build_cache
from penstock.pipelines.spec import ImagePipeline

ROUNDS, PHOTOS = 15, 14  # 210 photos
PIPELINES: list[dict[str, Any]] = [
    {"crop": "letterbox", "size": (160, 200)},
    {"crop": "full", "size": (170, 150), "flip": 1.0},
    {"crop": "center", "size": (180, 160), "vertical_flip": 1.0},
    {"crop": "random_resized", "size": (160, 160), "rotate90": 0.8, "scale": (0.8, 1.0)},
    {"crop": "scale_jitter", "size": (180, 140)},
]


def write_coco(path: Path, entries: list[tuple[str, tuple[int, int], list[int]]], **more: Any) -> Path:
    """Write a COCO file from (name, (width, height), corners), one box per image."""
    images = [{"id": n, "file_name": name, "width": w, "height": h} for n, (name, (w, h), _) in enumerate(entries)]
    boxes = [
        {"id": n, "image_id": n, "category_id": 1, "bbox": [a, b, c - a, d - b], **more}
        for n, (_, _, (a, b, c, d)) in enumerate(entries)
    ]
    path.write_text(json.dumps({"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "red"}]}))
    return path


@pytest.mark.filterwarnings("ignore:.*has the EXIF orientation:UserWarning")
@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_box_lies_on_its_object_or_its_image_is_refused(tmp_path: Path, number: int) -> None:
    """Each photo has one of 8 orientations, as JPEG or PNG, annotated upright, as stored, or in another size."""
    rng = np.random.default_rng(number)
    exif = ("ignore", "apply")[number % 2]
    folder = tmp_path / "photos"
    folder.mkdir()
    photos, entries, refused, unclear = [], [], {}, set()
    for index in range(PHOTOS):
        kind = ("JPEG", "PNG")[int(rng.integers(2))]
        photo = make_photo(rng, kind, int(rng.integers(1, 9)))
        name = f"{index:02}.{kind.lower()}"
        (folder / name).write_bytes(photo.data)
        turned = photo.size[::-1] if photo.orientation >= 5 else photo.size
        read, box = (photo.size, photo.upright_box) if exif == "apply" else (turned, photo.stored_box)
        fault = str(rng.choice(["none", "none", "other frame", "resized", "swapped"]))
        size = read
        if fault == "other frame":
            size, box = (turned, photo.stored_box) if exif == "apply" else (photo.size, photo.upright_box)
        elif fault == "resized":
            size, box = (2 * read[0], 2 * read[1]), [2 * end for end in box]
        elif fault == "swapped":
            size = read[::-1]
        if size != read:
            refused[index] = (size, read)
        elif fault == "other frame" and photo.orientation > 1:
            unclear.add(index)  # both sizes are equal: the orientation is ambiguous
        photos.append(photo)
        entries.append((name, size, box))
    file = write_coco(tmp_path / "a.json", entries)
    pipeline = ImagePipeline(**{"flip": 0.5, **PIPELINES[number % len(PIPELINES)], "exif": exif})
    options: dict[str, Any] = {"pipeline": pipeline, "batch_size": PHOTOS, "dtype": torch.uint8, "shuffle": False}
    options |= {"on_bad_sample": "replace", "drop_last": False, "seed": number}
    options |= {"workers": number % 3, "workers_are": "threads"}
    with create_loader(with_fields(folder, coco=Coco(file, min_area=0)), **options) as loader:
        (batch,) = loader.batches()
        bad = {entry.sample: entry for entry in loader.ledger().bad}
    assert set(bad) == set(refused)
    for index, sizes in refused.items():
        annotated, read = ("{}x{}".format(*size) for size in sizes)
        assert f"annotated at {annotated} pixels, but the image has {read}" in bad[index].cause
    compared = 0
    for row, index in enumerate(batch.index.tolist()):
        if index < 0 or row in refused or index in unclear:
            continue
        boxes, found = batch.fields["boxes"][row].tolist(), find_red(batch.images[row])
        if not boxes or found is None or min(boxes[0][2] - boxes[0][0], boxes[0][3] - boxes[0][1]) < 12:
            continue
        assert np.abs(np.array(boxes[0]) - found).max() < 2, (index, photos[index])
        compared += 1
    assert compared + len(refused) + len(unclear) > PHOTOS // 2


def one_photo(folder: Path, orientation: int, size: tuple[int, int], kind: str = "jpg") -> str:
    exif = Image.Exif()
    exif[0x0112] = orientation
    folder.mkdir(exist_ok=True)
    Image.new("RGB", size, (9, 9, 9)).save(folder / f"a.{kind}", exif=exif)
    return f"a.{kind}"


def serve(source: Any, **options: Any) -> Any:
    pipeline = ImagePipeline(size=(60, 80), crop="full", flip=0.0, exif=options.pop("exif", "ignore"))
    with create_loader(source, **{"pipeline": pipeline, "batch_size": 1, "workers": 0, **options}) as loader:
        return next(iter(loader))


ENGINES: dict[str, dict[str, Any]] = {
    "in the process": {"decoder": "simplejpeg"},
    "native": {},
    "threads": {"workers": 2, "workers_are": "threads"},
    "processes": {"workers": 1, "workers_are": "processes"},
    "hdf5": {"backend": "hdf5"},
    "dali": {"backend": "dali", "workers": 1},
}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_warns_that_exif_is_ignored_and_refuses_another_size(tmp_path: Path, engine: str) -> None:
    options = dict(ENGINES[engine])
    for place, orientation, size in (("half", 3, (80, 60)), ("quarter", 6, (80, 60)), ("square", 6, (60, 60))):
        name = one_photo(tmp_path / place, orientation, size)
        if engine == "hdf5":
            options["cache"] = tmp_path / f"{place}.h5"
        file = write_coco(tmp_path / f"{place}.json", [(name, size, [1, 2, 30, 40])])
        if place == "quarter":  # the annotated size is the stored one: the boxes fit
            assert len(serve(with_fields(tmp_path / place, coco=file), **options)["boxes"][0]) == 1
            file = write_coco(tmp_path / f"{place}2.json", [(name, size[::-1], [1, 2, 30, 40])])
            options |= {"cache": tmp_path / "other.h5"} if engine == "hdf5" else {}
            with pytest.raises(LoaderError, match=r"annotated at 60x80 pixels, but the image has 80x60 .*exif='apply'"):
                serve(with_fields(tmp_path / place, coco=file), **options)
            continue
        with pytest.warns(
            UserWarning, match=f"a.jpg'.* EXIF orientation {orientation}, which is ignored, but its boxes"
        ):
            serve(with_fields(tmp_path / place, coco=file), **options)


@pytest.mark.parametrize("kind", ["jpg", "png"])
def test_fields_that_move_warn_if_exif_is_ignored(tmp_path: Path, kind: str) -> None:
    """There is no warning if the annotated size shows that the fields fit the stored image."""
    name = one_photo(tmp_path / "half", 3, (80, 60), kind)
    one_photo(tmp_path / "quarter", 8, (80, 60), kind)
    Image.new("L", (80, 60)).save(tmp_path / "mask.png")
    box = [[[1, 2, 30, 40]]]
    entries: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
        ("half", {"mask": Masks([tmp_path / "mask.png"])}, {}, "mask"),
        ("half", {"boxes": Boxes(box)}, {}, "boxes"),
        ("quarter", {"boxes": Boxes(box)}, {}, "boxes"),
        ("half", {"boxes": Boxes(box, sizes=[[80, 60]])}, {}, "boxes"),
        ("half", {"keypoints": Keypoints(np.ones((1, 2, 2)))}, {}, "keypoints"),
        ("quarter", {"keypoints": Keypoints(np.ones((1, 2, 2)))}, {}, "keypoints"),
        ("quarter", {"mask": Masks([tmp_path / "mask.png"])}, {}, ""),
        ("quarter", {"boxes": Boxes(box, sizes=[[80, 60]])}, {}, ""),
        ("half", {"boxes": Boxes([[]])}, {}, ""),
        ("half", {"text": ["a"]}, {}, ""),
        ("half", {"boxes": Boxes(box)}, {"exif": "apply"}, ""),
    ]
    assert name
    for folder, fields, options, field in entries:
        source = with_fields(tmp_path / folder, **fields)
        if not field:
            serve(source, **options)  # warnings are errors here
            continue
        with pytest.warns(UserWarning, match=rf"which is ignored, but its {field} may refer to the upright image"):
            serve(source, **options)


def test_sizes_of_boxes_in_arrays_are_checked(tmp_path: Path) -> None:
    one_photo(tmp_path / "photos", 1, (80, 60))
    box = [[[1, 2, 30, 40]]]
    assert len(serve(with_fields(tmp_path / "photos", boxes=Boxes(box, sizes=[[80, 60]])))["boxes"][0]) == 1
    for sizes in ([[60, 80]], [[160, 120]]):
        text = f"annotated at {sizes[0][0]}x{sizes[0][1]} pixels, but the image has 80x60.*scale the annotations"
        with pytest.raises(LoaderError, match=text):
            serve(with_fields(tmp_path / "photos", boxes=Boxes(box, sizes=sizes)))
    for sizes in ([[80]], [[80, 60], [80, 60]], [[0, 60]], [[80.0, 60.0]]):
        with pytest.raises(ValueError, match=r"sizes must be width and height of each image, integers \[1, 2\]"):
            with_fields(tmp_path / "photos", boxes=Boxes(box, sizes=sizes))


def test_drawn_masks_must_have_the_size_of_their_image(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    name = one_photo(tmp_path / "photos", 6, (80, 60))
    outline = {"segmentation": [[1, 2, 30, 2, 30, 40]]}
    for size, exif, other in (((60, 80), "ignore", "apply"), ((80, 60), "apply", "ignore")):
        file = write_coco(tmp_path / "a.json", [(name, size, [1, 2, 30, 40])], **outline)
        assert serve(with_fields(tmp_path / "photos", mask=file), exif=other)["mask"].unique().tolist() == [0, 1]
        text = f"the mask has {size[0]}x{size[1]} pixels, but its image has {size[1]}x{size[0]}.*exif='{other}'"
        with pytest.raises(LoaderError, match=text):
            serve(with_fields(tmp_path / "photos", mask=file), exif=exif)


def test_coordinates_next_to_a_cache_of_smaller_images_warn(tmp_path: Path) -> None:
    one_photo(tmp_path / "photos", 1, (80, 60))
    for name, encoding in (("small", Encoding(resize=30)), ("whole", Encoding())):
        build_cache(open_source(tmp_path / "photos"), tmp_path / f"{name}.h5", encoding, workers=0)
    box, point = [[[1, 2, 9, 9]]], [[[20, 20]]]
    given: list[dict[str, Any]] = [
        {"boxes": box},
        {"keypoints": Keypoints(point, ())},
        {"other": Boxes(box), "subset": [0]},
    ]
    for fields in given:
        with pytest.warns(UserWarning, match="downscaled.*must be in pixels of these"):
            with_fields(tmp_path / "small.h5", **fields)
        with_fields(tmp_path / "whole.h5", **fields)  # warnings are errors here
    sized = with_fields(tmp_path / "small.h5", boxes=Boxes(box, sizes=[[80, 60]]))
    with pytest.raises(LoaderError, match="annotated at 80x60 pixels, but the image has 40x30"):
        serve(sized)


def test_coordinates_relative_to_the_image_size_warn(tmp_path: Path) -> None:
    name = one_photo(tmp_path / "photos", 1, (80, 60))
    small: Any = [0, 0, 0.5, 1]
    for fields, what in (
        ({"boxes": [[small]]}, "boxes"),
        ({"boxes": [[[-0.01, 0, 0.5, 1.02]]]}, "boxes"),
        ({"keypoints": Keypoints([[[0.2, 1.0]]], ())}, "keypoints"),
        ({"keypoints": Keypoints([[[-0.2, 1.2]]], ())}, "keypoints"),
        ({"coco": write_coco(tmp_path / "a.json", [(name, (80, 60), small)])}, r"boxes of .*a\.json'"),
    ):
        with pytest.warns(UserWarning, match=f"all {what} are between -1.25 and 1.25, but must be in pixels"):
            with_fields(tmp_path / "photos", **fields)
    for boxes in ([[[0, 0, 1, 1]]], [[[0, 0.5, 1, 1.5]]], [[]]):
        with_fields(tmp_path / "photos", boxes=boxes)  # warnings are errors here
