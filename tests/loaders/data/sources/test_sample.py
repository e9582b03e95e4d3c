"""Samples by number: source[i] is the image, label and fields as they are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory_source import MemorySource
from PIL import Image

from penstock.loaders import (
    Boxes,
    DataLoader,
    LoaderError,
    Masks,
    Sample,
    Yolo,
    concat,
    create_loader,
    mix,
    open_source,
    stack,
    with_fields,
    with_labels,
)

COUNT = 9
DRAWS = np.random.default_rng(1)
PIXELS = DRAWS.integers(0, 256, (COUNT, 10, 14, 3), np.uint8)
ARRAYS = PIXELS, np.arange(COUNT) % 3


def save(path: Path, image: Any, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, **options)
    return path


def test_images_are_as_stored(tmp_path: Path) -> None:
    grey, deep = PIXELS[0, :, :, 0], DRAWS.integers(0, 65536, (10, 14), np.uint16)
    exif = Image.Exif()
    exif[0x0112] = 6
    save(tmp_path / "a" / "0.png", PIXELS[0])
    save(tmp_path / "a" / "1.jpg", PIXELS[1], quality=80, exif=exif)
    save(tmp_path / "a" / "2.png", grey)
    save(tmp_path / "b" / "3.png", deep)
    (tmp_path / "b" / "4.png").write_bytes(b"\x89PNG broken")
    source: Any = open_source(tmp_path)
    with Image.open(tmp_path / "a" / "1.jpg") as photo:
        stored = np.asarray(photo)
    for number, expected in enumerate((PIXELS[0], stored, grey[..., None].repeat(3, -1), deep[..., None])):
        sample = source[number]
        assert np.array_equal(sample.image, expected)
        assert sample.image.dtype == expected.dtype
        assert sample.image.flags.writeable
        assert (sample.class_name, sample.fields) == ("ab"[number > 2], {})
        assert sample.name == f"{sample.class_name}/{number}.{'jpg' if number == 1 else 'png'}"
    with pytest.raises(LoaderError, match=r"sample=4 .*4\.png"):
        source[4]


@pytest.mark.parametrize("kind", ["uint16", "float32"])
def test_arrays_keep_their_type_and_channels(kind: str) -> None:
    images = DRAWS.uniform(0, 200, (COUNT, 4, 5, 6)).astype(kind)
    source: Any = open_source((images, ARRAYS[1]))
    assert all(np.array_equal(source[number].image, images[number]) for number in range(COUNT))
    assert source[0].image.dtype == kind
    source[0].image[:] = 0  # a copy
    assert source[0].image.any()


def test_labels_of_every_kind() -> None:
    kinds = ["dog", "cat", "emu"] * 3
    several = with_labels(ARRAYS, {"kind": kinds, "age": np.arange(COUNT) / 2, "tags": [["a"], ["b"], []] * 3})
    for source, label, name in (
        (open_source(ARRAYS), 1, "1"),
        (with_labels(ARRAYS, kinds), 2, "emu"),
        (with_labels(ARRAYS, np.arange(COUNT) / 4), 1.0, None),
    ):
        sample = source[4] if name != "emu" else source[-1]  # type: ignore[index]
        assert (sample.label, type(sample.label), sample.class_name) == (label, type(label), name)
    label = several[1].label  # type: ignore[index]
    assert (label["kind"], label["age"], label["tags"].tolist()) == (0, 0.5, [0, 1])


def test_fields_are_in_pixels_of_the_image(tmp_path: Path) -> None:
    for number in range(COUNT):
        save(tmp_path / "photos" / f"{number}.png", PIXELS[number])
        (tmp_path / "labels").mkdir(exist_ok=True)
        (tmp_path / "labels" / f"{number}.txt").write_text("1 0.5 0.5 0.5 0.2\n" * (number % 3))
    masks = DRAWS.integers(0, 9, (COUNT, 10, 14), np.uint8)
    corners = [DRAWS.uniform(0, 10, (number % 3, 4)).astype(np.float32) for number in range(COUNT)]
    points = DRAWS.uniform(0, 10, (COUNT, 2, 3)).astype(np.float32)
    classes = [[0] * len(each) for each in corners]
    source: Any = with_fields(
        tmp_path / "photos",
        mask=Masks(masks),
        boxes=Boxes([np.sort(each, 1) for each in corners], classes, names=["a"], first_class=1),
        keypoints=points,
        text=[str(number) for number in range(COUNT)],
        about=[{"number": number} for number in range(COUNT)],
    )
    relative: Any = with_fields(tmp_path / "photos", yolo=Yolo(tmp_path / "labels", ["x", "y"]))
    for number in range(COUNT):
        fields = source[number].fields
        assert list(fields) == ["mask", "boxes", "boxes_classes", "keypoints", "text", "about"]
        assert np.array_equal(fields["mask"], masks[number])
        assert np.array_equal(fields["boxes"], np.sort(corners[number], 1))
        assert fields["boxes_classes"].tolist() == [1] * (number % 3)
        assert np.array_equal(fields["keypoints"], points[number])
        assert (fields["text"], fields["about"]) == (str(number), {"number": number})
        assert np.allclose(relative[number].fields["boxes"], np.tile([3.5, 4, 10.5, 6], (number % 3, 1)))
        assert relative[number].fields["boxes_classes"].tolist() == [1] * (number % 3)


def test_parts_and_joined_data_have_their_own_numbers(tmp_path: Path) -> None:
    photos = [save(tmp_path / "photos" / "abc"[n % 3] / f"{n}.png", PIXELS[n]) for n in range(COUNT)]
    whole: Any = open_source(tmp_path / "photos")
    part: Any = open_source(tmp_path / "photos", subset=[5, 2])
    assert [sample.name for sample in part] == [whole[5].name, whole[2].name]
    arrays = with_labels(ARRAYS, list("abc" * 3))
    both: Any = concat([part, arrays])
    assert np.array_equal(both[0].image, whole[5].image)
    assert np.array_equal(both[2].image, PIXELS[0])
    assert both[-1].index == len(both) - 1 == 10
    bands: Any = stack([tmp_path / "photos"] * 2)
    assert np.array_equal(bands[1].image, np.concatenate([whole[1].image] * 2, 2))
    mixed: Any = mix({"one": (part, 0.5), "two": (arrays, 0.5)})
    assert len(list(mixed)) == len(mixed)
    assert len(photos) == COUNT


def test_a_loader_has_samples_of_every_source(tmp_path: Path) -> None:
    files = [save(tmp_path / f"{number}.png", PIXELS[number]).read_bytes() for number in range(COUNT)]
    with create_loader(MemorySource(files), batch_size=2, workers=0) as loader:
        sample = loader.dataset[-2]
        assert isinstance(sample, Sample)
        assert np.array_equal(sample.image, PIXELS[COUNT - 2])
        assert (sample.label, sample.class_name, sample.name) == (0, "0", "memory/7.jpg")
        next(iter(loader))


@pytest.mark.parametrize(("index", "error"), [(COUNT, IndexError), (-COUNT - 1, IndexError), (1.0, TypeError)])
def test_numbers_out_of_range_are_refused(index: Any, error: type[Exception]) -> None:
    source: Any = open_source(ARRAYS)
    with pytest.raises(error, match=r"sample|subset=':100'"):
        source[index]
    assert source[np.int64(-COUNT)].index == 0
    with pytest.raises(TypeError, match=r"got slice: open_source\(\.\.\., subset=':100'\) chooses a part"):
        source[:3]
    with pytest.raises(ValueError, match="dataset must be a Dataset of torch"):
        DataLoader(source)
