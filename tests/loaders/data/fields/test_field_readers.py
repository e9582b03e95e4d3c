"""Inputs of with_fields: masks from any place, COCO, YOLO, lists; refusals name the sample."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from odd_images import encoded
from photo_folder import photo
from PIL import Image
from tar_files import write_tar

from penstock.loaders import Boxes, Coco, Column, Keypoints, Masks, Yolo, create_loader, open_source, with_fields
from penstock.pipelines.spec import ImagePipeline

NUM_PHOTOS = 6
SIZES = [Image.open(io.BytesIO(photo(number))).size for number in range(NUM_PHOTOS)]
WHOLE = ImagePipeline(size=(32, 32), crop="full", flip=0.0)


def png(values: Any) -> bytes:
    return encoded(values, "PNG")


MASKS = [np.random.default_rng(n).integers(0, 99, size[::-1]).astype(np.uint8) for n, size in enumerate(SIZES)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for place in ("images", "masks", "labels"):
        (folder / place).mkdir()
    for number in range(NUM_PHOTOS):
        (folder / "images" / f"p{number}.jpg").write_bytes(photo(number))
        (folder / "masks" / f"p{number}.png").write_bytes(png(MASKS[number]))
        (folder / "masks" / f"p{number}_seg.png").write_bytes(png(MASKS[number]))
    return folder / "images"


def serve(source: Any) -> dict[str, Any]:
    with create_loader(source, pipeline=WHOLE, batch_size=NUM_PHOTOS, dtype=torch.uint8, workers=0) as loader:
        (batch,) = loader
    return batch  # type: ignore[no-any-return]


def test_masks_from_any_place_are_read(photos: Path, tmp_path: Path) -> None:
    folder = photos.parent / "masks"
    only = tmp_path / "only"
    only.mkdir()
    for number in range(NUM_PHOTOS):
        (only / f"p{number}.png").write_bytes(png(MASKS[number]))
    names = [f"p{number}" for number in range(NUM_PHOTOS)]
    members = [
        (f"{name}.{suffix}", data)
        for number, name in enumerate(names)
        for suffix, data in (
            ("jpg", photo(number)),
            ("seg.png", png(MASKS[number])),
            ("txt", f"text {number}".encode()),
        )
    ]
    tar = write_tar(tmp_path / "a.tar", members)
    in_tar = {"mask": open_source(tar, image="seg.png"), "caption": open_source(tar, image="txt")}
    kinds: list[dict[str, Any]] = [
        {"mask": folder},
        {"mask": f"{folder}/{{name}}_seg.png"},
        {"mask": lambda name: folder / name.replace(".jpg", "_seg.png")},
        {"mask": [folder / f"{name}.png" for name in names]},
        {"mask": open_source(only)},
    ]
    served = [serve(with_fields(photos, **kind))["mask"] for kind in kinds]
    of_tar = serve(with_fields(open_source(tar, image="jpg"), **in_tar))
    assert of_tar["caption"] == [f"text {number}" for number in range(NUM_PHOTOS)]
    assert all(torch.equal(each, served[0]) for each in [*served, of_tar["mask"]])
    assert served[0].unique().numel() > 50


def test_texts_are_decoded_by_their_byte_order_mark_and_other_bytes_warn(tmp_path: Path) -> None:
    texts = ["plain", "caf\xe9", "caf\xe9", "caf\xe9", "caf\xe9", ""]
    kinds = ["utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1", "utf-8"]
    members = []
    for number, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
        members += [(f"{number}.png", encoded(Image.new("RGB", (4, 4)), "PNG")), (f"{number}.txt", text.encode(kind))]
    write_tar(tmp_path / "a.tar", members)
    images, others = (open_source(tmp_path / "a.tar", image=kind, label=None) for kind in ("png", "txt"))
    with pytest.warns(UserWarning, match=r"1 text of 6 cannot be read as UTF-8, first at .*4\.png"):
        source: Any = with_fields(images, note=others)
    assert source.fields(np.arange(6))["note"] == [*texts[:4], "caf\udce9", ""]
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "t.csv").write_bytes("path,label,text\na.png,0,caf\xe9\n".encode("latin-1"))
    with pytest.warns(UserWarning, match=r"1 text of 1 cannot be read as UTF-8, first at .*a\.png"):
        with_fields(tmp_path / "t.csv", label="label", text=Column("text"))


def test_masks_next_to_photos_and_annotations_with_the_same_names_are_found(photos: Path, tmp_path: Path) -> None:
    for number in range(NUM_PHOTOS):
        (tmp_path / f"p{number}.png").write_bytes(png(MASKS[number]))
        (tmp_path / f"p{number}.jpg").write_bytes(photo(number))
        (tmp_path / f"p{number}.json").write_bytes(b"{}")
    expected = serve(with_fields(photos, mask=photos.parent / "masks"))["mask"]
    assert torch.equal(serve(with_fields(photos, mask=tmp_path))["mask"], expected)


@pytest.mark.parametrize("is_pattern", [False, True])
def test_masks_and_text_files_are_found_for_a_list_of_absolute_paths(tmp_path: Path, is_pattern: bool) -> None:
    """The fields lie in folders other than the images'; a text file next to an image does not replace one of them."""
    for number, name in enumerate(("a/0", "a/1", "b/1")):
        for folder in ("photos/a", "photos/b", "masks", "labels"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / f"photos/{name}.png")
        (tmp_path / f"photos/{name}.txt").write_text("7 0.5 0.5 1 1\n")
        (tmp_path / f"masks/{number}.png").write_bytes(png(np.full((8, 8), 5 + number, np.uint8)))
        (tmp_path / f"labels/{number}.txt").write_text(f"{number} 0.5 0.5 1 1\n")
    listed: Any = [str(tmp_path / f"photos/a/{number}.png") for number in (0, 1)]
    if is_pattern:
        listed = str(tmp_path / "photos/a/*.png")
    for mask in (tmp_path / "masks", str(tmp_path / "masks/{name}.png")):
        with pytest.warns(UserWarning, match=r"1 text file of .* first '2.txt'"):
            batch = serve(with_fields(listed, mask=mask, yolo=tmp_path / "labels"))
        assert batch["mask"].amax((1, 2)).tolist() == [5, 6]
        assert [numbers.tolist() for numbers in batch["boxes_classes"]] == [[0], [1]]
    twins = [tmp_path / f"photos/{name}.png" for name in ("a/1", "b/1")]
    for subset in (None, [0]):
        for fields in ({"mask": tmp_path / "masks"}, {"yolo": tmp_path / "labels"}):
            with pytest.raises(ValueError, match="two samples have the key '1'"):
                with_fields(twins, subset=subset, **fields)
    masks = [tmp_path / "masks" / f"{number}.png" for number in (2, 1, 0)]
    assert serve(with_fields(listed, mask=open_source(masks)))["mask"].amax((1, 2)).tolist() == [5, 6]
    for subset, which in ((None, 1), ([1], 0)):
        with pytest.raises(ValueError, match=rf"no mask for sample {which} .*b/1"):
            with_fields(
                twins, subset=subset, mask=open_source([tmp_path / "photos/a/0.png", tmp_path / "photos/a/1.png"])
            )
    Image.new("RGB", (8, 8)).save(tmp_path / "photos/a/3.png")
    with pytest.raises(ValueError, match=r"must be named 3\.png"):
        with_fields([tmp_path / "photos/a/3.png"], mask=tmp_path / "masks")


def test_a_list_of_masks_in_another_order_warns(photos: Path) -> None:
    names = [f"p{number}" for number in range(NUM_PHOTOS)]
    masks, listed = [photos.parent / f"masks/{n}.png" for n in names], [photos / f"{n}.jpg" for n in names]
    others = [photos.parent / f"masks/{n}_seg.png" for n in names[::-1]]
    for given in (masks, others, masks[:1] * NUM_PHOTOS):
        with_fields(photos, mask=given)  # warnings are errors here
    for source in (photos, listed):
        with pytest.warns(UserWarning, match=rf"of 2 of {NUM_PHOTOS} samples have the names of others, .* sample 1 "):
            with_fields(source, mask=[masks[0], masks[2], masks[1], *masks[3:]])


def test_missing_values_are_counted() -> None:
    images = (np.zeros((3, 8, 8, 3), np.uint8), np.zeros(3, np.int64))
    given: list[Any] = [["a", None, None], [1.5, float("nan"), None], {"array[0]": "a"}.get]
    for values in given:
        with pytest.warns(UserWarning, match=r"2 samples of 3 have no value \(None or NaN\), first .*1"):
            with_fields(images, text=values)
    with pytest.warns(UserWarning, match="3 samples of 3 have no value"):
        with_fields(images, text={}.get)
    with_fields(images, text=["", [], {}])
    with_fields(images, text=[None, 1, "a"])  # any JSON value


def test_a_missing_folder_of_masks_is_named(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"in '{tmp_path}/nothing': there is no such folder"):
        with_fields(photos, mask=tmp_path / "nothing")


def test_masks_in_arrays_are_served() -> None:
    images = np.zeros((NUM_PHOTOS, 32, 32, 3), np.uint8)
    masks = np.random.default_rng(0).integers(0, 70_000, (NUM_PHOTOS, 32, 32))
    source = with_fields((images, np.zeros(NUM_PHOTOS, int)), mask=Masks(masks, dtype="int32", ignore_index=-100))
    served = serve(source)["mask"]
    assert served.dtype == torch.int32
    assert np.array_equal(served.numpy(), masks)


def write_coco(path: Path) -> Path:
    names = ["nose", "left_eye", "right_eye"]
    document: dict[str, Any] = {
        "images": [
            {"id": 100 - n, "file_name": f"p{n}.jpg", "width": w, "height": h} for n, (w, h) in enumerate(SIZES)
        ],
        "categories": [{"id": 7, "name": "dog", "keypoints": names}, {"id": 3, "name": "cat"}],
        "annotations": [
            {
                "id": 1,
                "image_id": 100,
                "category_id": 7,
                "bbox": [1, 2, 10, 20],
                "keypoints": [4, 5, 2, 0, 0, 0, 6, 7, 1],
            },
            {"id": 2, "image_id": 98, "category_id": 3, "bbox": [0, 0, 5.5, 6], "iscrowd": 0},
            {"id": 3, "image_id": 98, "category_id": 3, "bbox": [0, 0, 5, 6], "iscrowd": 1},
            {"id": 4, "image_id": 100, "category_id": 3, "bbox": [3, 3, 8, 8]},
        ],
    }
    path.write_text(json.dumps(document))
    return path


def test_a_coco_file_gives_boxes_keypoints_and_image_ids(photos: Path, tmp_path: Path) -> None:
    source = with_fields(photos, coco=write_coco(tmp_path / "a.json"))
    assert list(source.field_kinds) == ["boxes", "keypoints", "image_ids"]  # type: ignore[attr-defined]
    assert source.field_kinds["boxes"].classes == (b"cat", b"dog")  # type: ignore[attr-defined]
    assert source.field_kinds["keypoints"].swaps == ((1, 2),)  # type: ignore[attr-defined]
    raw = source.fields(np.arange(NUM_PHOTOS))  # type: ignore[attr-defined]
    assert raw["boxes"].lengths.tolist() == raw["keypoints"].lengths.tolist() == [2, 0, 1, 0, 0, 0]
    assert raw["boxes"].parts[0].tolist() == [[1, 2, 11, 22], [3, 3, 11, 11], [0, 0, 5.5, 6]]
    assert raw["boxes"].parts[1].tolist() == [1, 0, 0]
    assert raw["keypoints"].parts[0][0].tolist() == [[4.5, 5.5, 2], [0.5, 0.5, 0], [6.5, 7.5, 1]]
    served = serve(source)
    assert [len(boxes) for boxes in served["boxes"]] == [2, 0, 1, 0, 0, 0]
    assert served["keypoints"][0].shape == (2, 3, 3)
    assert served["keypoints"][0][0, 0, 0].item() == pytest.approx(4.5 * 32 / SIZES[0][0])
    padded = serve(with_fields(photos, coco=Coco(tmp_path / "a.json", padded=True)))
    assert padded["keypoints"].shape == (NUM_PHOTOS, 2, 3, 3)
    assert torch.equal(padded["keypoints"][0], served["keypoints"][0])


def test_yolo_text_files_give_boxes(photos: Path) -> None:
    labels = photos.parent / "labels"
    (labels / "p1.txt").write_text("1 0.5 0.5 1.0 1.0\n0 0.25 0.5 0.5 0.5\n")
    (labels / "p4.txt").write_text("")
    served = serve(with_fields(photos, objects=Yolo(labels, names=["cat", "dog"])))
    assert [len(boxes) for boxes in served["objects"]] == [0, 2, 0, 0, 0, 0]
    assert served["objects_classes"][1].tolist() == [1, 0]
    assert served["objects"][1].tolist() == [[0, 0, 32, 32], [0, 8, 16, 24]]


N = NUM_PHOTOS
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"images": ["a"] * N}, "a field must not be named images"),
    ({"text": [{1, 2}] * N}, "JSON values, got {1, 2}"),
    ({"mask": "s3://masks/"}, "field 'mask': masks cannot be read from"),
    ({"mask": ["a.png"] * 5}, "masks must be one path per sample (6), got 5"),
    ({"mask": "nowhere"}, "no mask for sample 0 ('p0.jpg') in 'nowhere'"),
    ({"patch_valid": ["a"] * N}, "a field must not be named patch_valid, which batches already have"),
    ({"mask": "nowhere/{name}.png"}, "no mask for sample 0 ('p0.jpg'): "),
    ({"mask": lambda name: f"{name}.png"}, "no mask for sample 0 ('p0.jpg'): "),
    ({"mask": ["nowhere.png"] * N}, "no mask for sample 0 ('p0.jpg'): "),
    ({"mask": np.zeros((N, 4), int)}, "masks must be integers [6, height, width]"),
    ({"mask": np.full((N, 4, 4), 256)}, "values of uint8 masks must be from 0 to 255, got 256 to 256"),
    ({"boxes": [np.zeros((0, 4))] * 5}, "boxes must be one list per sample (6), got 5"),
    ({"boxes": {f"p{number}.jpg": [] for number in range(N)}}, "boxes must be one list per sample (6), got {'p0.jpg'"),
    ({"boxes": [np.zeros((2, 3))] * N}, "sample 0: boxes must be numbers [k, 4], got float64 [2, 3]"),
    ({"boxes": ([[[0, 0, 1, 1]]] * N, [[0]] * 5 + [[0, 1]])}, "sample 5 has 1 boxes and 2 classes"),
    ({"boxes": ([[[0, 0, 1, 1]]] * N, [[-1]] * N)}, "sample 0 has a box of class -1: class numbers must be at least 0"),
    ({"boxes": Boxes([[[0, 0, 1, 1]]] * N, [[2]] * N, names=["a", "b"])}, "class numbers must be from 0 to 1"),
    ({"boxes": Boxes([[[0, 0, 1, 1]]] * N, [["c"]] * N, names=["a"])}, "sample 0 has a box of the unknown class 'c'"),
    ({"keypoints": np.zeros((N, 4))}, "keypoints must be numbers [6, k, 3] or [6, k, 2], got float64 [6, 4]"),
    ({"keypoints": Keypoints(np.zeros((N, 2, 2)), [(0, 2)])}, "swaps must be pairs of different keypoints from 0 to 1"),
    ({"boxes": ([[[0, 0, 1, 1]]] * N, [["c"], [3]] * 3)}, "sample 0 has a box of the class 'c', but sample 1 one of 3"),
    (
        {"boxes": ([[[0, 0, 1, 1]]] * N, [["1"], ["c"]] * 3)},
        "sample 1 has a box of the class 'c', but sample 0 one of '1'",
    ),
    ({"boxes": ([[[0, 0, 1, 1]]] * N, [["c"], [None]] * 3)}, "sample 1 has a box without a class"),
    ({"boxes": ([[[0, 0, 1, 1]]] * N, [["c"], [float("nan")]] * 3)}, "sample 1 has a box without a class"),
    (
        {"boxes": ([[[0, 0, 1, 1]]] * N, [0] * N)},
        "classes must be a list per sample with one class per box, sample 0 has 0",
    ),
    (
        {"boxes": ([[[0, 0, 1, 1]] * 3] * N, ["cat"] * N)},
        "classes must be a list per sample with one class per box, sample 0",
    ),
    ({"boxes": [[[0, 0, 1], [0, 0, 1, 1]]] * N}, "sample 0: boxes must be numbers in lists of one length"),
    ({"boxes": Boxes([[]] * N, sizes=[[1, 1], [1]] * 3)}, "sizes must be numbers in lists of one length"),
    ({"mask": [np.zeros((4, 4), np.uint8)] * N}, "the mask of sample 0 must be a path, got array"),
    ({"mask": ["a.png", None] * 3}, "the mask of sample 1 must be a path, got None"),
    ({"mask": lambda name: None}, "the mask of sample 0 must be a path, got None"),
    ({"mask": lambda name: {}[name]}, "field 'mask': the function raised KeyError for sample 0 ('p0.jpg')"),
    ({"text": lambda name: {}[name]}, "field 'text': the function raised KeyError for sample 0 ('p0.jpg')"),
    ({"mask": lambda name: "one.png"}, "two samples have the mask '"),
    ({"coco": None}, "coco must be a path, got None"),
    ({"coco": 3}, "coco must be a path, got 3"),
    ({"yolo": None}, "yolo must be a path, got None"),
    ({"keypoints": [[[1, 2]], [[1, 2], [3, 4]]] * 3}, "keypoints must be numbers in lists of one length"),
    ({"keypoints": Keypoints(np.zeros((N, 2, 2)), [1])}, "swaps must be pairs of different keypoints from 0 to 1, got"),  # type: ignore[list-item]
    ({"keypoints": Keypoints(np.zeros((N, 2, 2)), [(0, 1.5)])}, "swaps must be pairs of different keypoints from"),  # type: ignore[list-item]
    ({"keypoints": np.full((N, 2, 2), np.nan)}, "keypoints must be finite numbers, but those of sample 0 are not"),
]


@pytest.mark.parametrize(("fields", "text"), REFUSED, ids=[text[:40] for _, text in REFUSED])
def test_invalid_fields_are_refused(photos: Path, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        with_fields(photos, **fields)


def test_digits_as_text_are_class_numbers_of_boxes(photos: Path) -> None:
    boxes, digits = [[[0, 0, 9, 9]]] * N, [["2"], ["10"], ["1"]] * 2
    for classes in (digits, [[int(each)] for (each,) in digits]):
        source: Any = with_fields(photos, boxes=Boxes(boxes, classes))
        assert source.fields(np.arange(N))["boxes"].parts[1].tolist() == [2, 10, 1] * 2
    source = with_fields(photos, boxes=Boxes(boxes, digits, names=["1", "2", "10"]))
    assert source.fields(np.arange(N))["boxes"].parts[1].tolist() == [1, 2, 0] * 2


@pytest.mark.parametrize("line", ["0 0.1 0.1 0.2 0.2 0.3 0.3", "0 0.1 0.1 -0.2 0.2", "cat 0 0 1 1", "0.5 0 0 1 1"])
def test_invalid_lines_of_yolo_files_are_refused(photos: Path, tmp_path: Path, line: str) -> None:
    (tmp_path / "p2.txt").write_text(line)
    with pytest.raises(ValueError, match=r"p2\.txt"):
        with_fields(photos, yolo=tmp_path)
    with pytest.raises(ValueError, match="no image has a text file"):
        with_fields(photos, yolo=tmp_path / "none")


@pytest.mark.parametrize("spec", [{"min_area": 1.5}, {"padded": 1}])
def test_impossible_settings_are_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(spec))):
        Boxes([], **spec)
    with pytest.raises(ValueError, match="ignore_index of uint8 masks"):
        Masks("masks", ignore_index=-1)
