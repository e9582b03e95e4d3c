"""JSON files of COCO and LVIS in with_fields: contradictions, and the ways to name images."""

from __future__ import annotations

import copy
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from penstock.loaders import (
    Boxes,
    Coco,
    LoaderError,
    Masks,
    Yolo,
    concat,
    create_loader,
    open_source,
    split,
    with_fields,
)
from penstock.pipelines.spec import ImagePipeline

SIDE = 64
FILES = ("a/a.png", "b/b.png", "x/0001.png", "y/0001.png")
WHOLE = ImagePipeline(size=(SIDE, SIDE), crop="full", flip=0.0)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for name in FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((SIDE, SIDE, 3), 100, np.uint8)).save(folder / name)
    return folder


def image(number: Any, name: str, **more: Any) -> dict[str, Any]:
    return {"id": number, "file_name": name, "width": SIDE, "height": SIDE, **more}


def box(number: int, image_id: Any, category: Any = 7, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "image_id": image_id,
        "category_id": category,
        "bbox": [number, 2, 10, 10],
        "area": 100,
        **more,
    }


def document(**changes: Any) -> dict[str, Any]:
    return {
        "images": [image(10 * (number + 1), name) for number, name in enumerate(FILES)],
        "annotations": [box(1, 20), box(2, 40, 3), box(3, 20, 3), box(4, 10, 7)],
        "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}],
        **changes,
    }


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def write_yolo(folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a" / "a.txt").write_text("1 0.5 0.5 0.5 0.5\n")


def serve(source: Any, **options: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"pipeline": WHOLE, "batch_size": len(FILES), "dtype": torch.uint8, "workers": 0}
    with create_loader(source, **{**settings, **options}) as loader:
        (batch,) = loader
    return batch  # type: ignore[no-any-return]


def lefts(batch: dict[str, Any]) -> list[list[int]]:
    """The annotation numbers of each image, stored as the left edges of the boxes."""
    return [[int(each[0]) for each in boxes] for boxes in batch["boxes"]]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "one image id twice": (
        {"images": [*document()["images"], image(20, "c.png")]},
        "images 'b/b.png' and 'c.png' have the id 20",
    ),
    "one file name twice": (
        {"images": [*document()["images"], image(50, "a/a.png")]},
        "images 10 and 50 have the file_name 'a/a.png'",
    ),
    "one category id twice": (
        {"categories": [*document()["categories"], {"id": 3, "name": "lion"}]},
        "categories 'cat' and 'lion' have the id 3",
    ),
    "an annotation of another image": (
        {"annotations": [box(1, 20), box(2, 99), box(3, 98)]},
        "annotation 2: the image_id 99 is not an id of the file (and 1 more annotations)",
    ),
    "an annotation without an image": (
        {"annotations": [{"id": 5, "category_id": 3}]},
        "annotation 5: it has no image_id",
    ),
    "an id as text": ({"annotations": [box(2, "20")]}, "annotation 2: the image_id '20' is not an id of the file"),
    "a list for an id": ({"annotations": [box(2, [20])]}, "annotation 2: the image_id [20] is not an id of the file"),
    "an annotation of another category": (
        {"annotations": [box(6, 20, 4)]},
        "annotation 6 of image 20: the category_id 4 is not an id of the file",
    ),
    "no id": ({"images": [{"file_name": "a/a.png"}]}, "image number 0 must have an id, an integer or text, got None"),
    "no name": ({"images": [{"id": 3}], "annotations": []}, "image 3 must have a file_name or a coco_url, got None"),
    "no height": (
        {"images": [{"id": 3, "file_name": "a/a.png", "width": 9}], "annotations": []},
        "image 3 must have width and height in pixels, or neither, got 9 and None",
    ),
    "a crowd as text": (
        {"annotations": [box(2, 20, iscrowd="0")]},
        "annotation 2 of image 20 must have iscrowd of 0 or 1, got '0'",
    ),
    "no box": (
        {"annotations": [box(1, 20), box(2, 20, bbox=None)]},
        "annotation 2 of image 20 must have a bbox of x, y",
    ),
    "an empty box": ({"annotations": [box(2, 20, bbox=[])]}, "annotation 2 of image 20 must have a bbox"),
    "words": ({"annotations": [box(2, 20, bbox=[1, 2, "x", 4])]}, "annotation 2 of image 20 must have a bbox"),
    "a negative side": ({"annotations": [box(2, 20, bbox=[1, 2, -3, 4])]}, "got [1, 2, -3, 4]"),
    "no number": ({"annotations": [box(2, 20, bbox=[1, 2, float("nan"), 4])]}, "annotation 2 of image 20 must have a"),
    "a huge number": ({"annotations": [box(2, 20, bbox=[1, 2, 10**400, 4])]}, "annotation 2 of image 20 must have a"),
    "a list of numbers": ({"images": [1, 2]}, "it has no list of objects called images"),
    "two sets of keypoints": (
        {
            "categories": [{"id": 7, "name": "dog", "keypoints": ["a"]}, {"id": 3, "name": "cat", "keypoints": ["b"]}],
            "annotations": [],
        },
        "categories 'cat' and 'dog' have different keypoints",
    ),
    "no annotations": (
        {"annotations": 3},
        "not a JSON file of COCO instances (it has no list of objects called annotations)",
    ),
    "no images": ({"images": [], "annotations": []}, "sample 0 ('a/a.png') is not in the file, which has 0 images"),
    "one last part of two names": (
        {"images": [image(1, "p/a.png"), image(2, "q/a.png")], "annotations": []},
        "sample 0 ('a/a.png') matches the last part of several names in the file, which has 2 images",
    ),
    "keypoints without names": (
        {"categories": [{"id": 7, "name": "dog", "keypoints": 4}], "annotations": []},
        "category 'dog' must have a list of names as its keypoints, got 4",
    ),
    "a box as text": ({"annotations": [box(2, 20, bbox="1234")]}, "annotation 2 of image 20 must have a bbox"),
    "no categories": (
        {"categories": []},
        "annotation 1 of image 20: the category_id 7 is not an id of the file (and 3 more annotations)",
    ),
    "two samples of one image": (
        {"images": [image(1, "a.png"), image(2, "b.png"), image(3, "x/0001.png")], "annotations": []},
        "y/0001.png') would both be image 'x/0001.png'",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("drawn", [False, True])
def test_files_that_contradict_themselves_are_refused(images: Path, tmp_path: Path, fault: str, drawn: bool) -> None:
    changes, text = WRONG[fault]
    file = write(tmp_path / "a.json", document(**changes))
    if drawn and ("of image 20 must have a" in text or "keypoints" in text or "got [1, 2, -3, 4]" in text):
        return  # masks need neither
    with pytest.raises(ValueError, match=re.escape(text)) as raised:
        with_fields(images, **({"mask": file} if drawn else {"coco": file}))
    assert "a.json" in str(raised.value)
    assert "\n" not in str(raised.value)


JUNK: list[Any] = [None, "", "x", [], {}, -1, 0, 3, 7, 20, 1.5, 1e400, float("nan"), True, [1], "20", 10**30]


def mutate(rng: np.random.Generator, content: Any) -> None:
    """Replace, repeat or delete one random value of a document."""
    at: Any = content
    while True:
        keys = [*at] if isinstance(at, dict) else [*range(len(at))]
        if not keys:
            return
        key = keys[int(rng.integers(len(keys)))]
        if isinstance(at[key], (dict, list)) and rng.random() < 0.9:
            at = at[key]
            continue
        way = rng.integers(4)
        if way == 0:
            del at[key]
        elif way == 1 and isinstance(at, list):
            at.append(copy.deepcopy(at[key]))
        else:
            at[key] = JUNK[int(rng.integers(len(JUNK)))]
        return


def naive(content: dict[str, Any]) -> list[list[list[float]]]:
    """The boxes of each file, read by plain loops: class number and corners."""
    ids = sorted(each["id"] for each in content["categories"])
    found = []
    for name in FILES:
        (image_id,) = [each["id"] for each in content["images"] if each["file_name"] == name]
        boxes = [each for each in content["annotations"] if each["image_id"] == image_id and not each.get("iscrowd")]
        corners = [[each["bbox"][0], each["bbox"][1], *np.add(each["bbox"][:2], each["bbox"][2:])] for each in boxes]
        pairs = zip(boxes, corners, strict=True)
        found.append([[ids.index(each["category_id"]), *map(float, corner)] for each, corner in pairs])
    return found


def test_random_faults_are_refused_or_change_nothing_else(images: Path, tmp_path: Path) -> None:
    """340 documents with one to three random faults: each is served as plain loops read it, or refused in one line."""
    rng, opened, served, refused = np.random.default_rng(0), open_source(images), 0, list[str]()
    for _ in range(340):
        content = document()
        for _ in range(int(rng.integers(1, 4))):
            mutate(rng, content)
        file = write(tmp_path / "a.json", content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # e.g. for images of the file that are not in the data
            try:
                source = with_fields(opened, coco=Coco(file, min_area=0))
            except ValueError as error:
                refused.append(str(error))
                continue
            raw = source.fields(np.arange(len(FILES)))["boxes"]  # type: ignore[attr-defined]
        ends = np.cumsum(raw.lengths)
        corners = [
            [[number, *box] for number, box in zip(raw.parts[1][a:b].tolist(), raw.parts[0][a:b].tolist(), strict=True)]
            for a, b in zip(ends - raw.lengths, ends, strict=True)
        ]
        wanted = naive(content)
        assert list(map(len, corners)) == list(map(len, wanted))
        assert all(np.allclose(own, other, rtol=1e-6) for own, other in zip(corners, wanted, strict=True) if own)
        served += 1
    assert all("a.json" in error and "\n" not in error for error in refused)
    assert min(served, len(refused)) > 40


@pytest.mark.parametrize("of", ["classes", "instances"])
def test_random_faults_of_segmentations_and_keypoints_are_refused_or_drawn(
    images: Path, tmp_path: Path, of: str
) -> None:
    """150 documents with one to three random faults: each is drawn and read, or refused in one line."""
    pytest.importorskip("pycocotools")
    rng, opened, refused = np.random.default_rng(1), open_source(images), list[str]()
    for _ in range(150):
        content = document()
        for each in content["categories"]:
            each["keypoints"] = ["nose", "left_eye", "right_eye"]
        for each in content["annotations"]:
            each |= {"keypoints": [9, 20, 2] * 3, "segmentation": [[1, 1, 20, 1, 20, 20], [30, 30, 40, 30, 40, 40]]}
        content["annotations"][0]["segmentation"] = {"size": [SIDE, SIDE], "counts": [SIDE, 9, SIDE * SIDE - SIDE - 9]}
        for _ in range(int(rng.integers(1, 4))):
            mutate(rng, content)
        file = write(tmp_path / "a.json", content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                source = with_fields(opened, mask=Masks(file, of=of), coco=file)
            except ValueError as error:
                refused.append(str(error))
                continue
        masks = [source.mask("mask", index) for index in range(len(FILES))]  # type: ignore[attr-defined]
        assert {mask.shape for mask in masks} <= {(SIDE, SIDE), *((h, w) for w, h in sizes_of(content))}
        source.fields(np.arange(len(FILES)))  # type: ignore[attr-defined]
    assert all("a.json" in error and "\n" not in error for error in refused)
    assert 50 < len(refused) < 150


def sizes_of(content: dict[str, Any]) -> list[tuple[int, int]]:
    return [(each["width"], each["height"]) for each in content["images"]]


def test_ids_of_any_kind_keep_their_images(images: Path, tmp_path: Path) -> None:
    """Repeated annotation ids, text or large ids, gaps in categories: each box stays with its image."""
    whole = document(annotations=[*document()["annotations"], box(4, 40, 3)])
    expected = [[4], [1, 3], [], [2, 4]]
    batch = serve(with_fields(images, coco=write(tmp_path / "a.json", whole)))
    assert lefts(batch) == expected
    assert batch["image_ids"].tolist() == [10, 20, 30, 40]
    assert [classes.tolist() for classes in batch["boxes_classes"]] == [[1], [1, 0], [], [0, 0]]
    for name, new in (("text", "x{}".format), ("large", lambda old: old * 10**15), ("float", float)):
        listed = [{**each, "id": new(each["id"])} for each in whole["images"]]
        boxes = [{**each, "image_id": new(each["image_id"])} for each in whole["annotations"]]
        other = {**whole, "images": listed, "annotations": boxes}
        batch = serve(with_fields(images, coco=write(tmp_path / f"{name}.json", other)))
        assert lefts(batch) == expected
        assert list(batch["image_ids"]) == [new(number) for number in (10, 20, 30, 40)]


def test_two_fields_with_the_same_name_are_refused(images: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", document())
    with pytest.raises(
        ValueError, match="two fields would be named image_ids, one of them from image_ids=: use another"
    ):
        with_fields(images, coco=file, image_ids=[1, 2, 3, 4])
    with pytest.raises(ValueError, match="two fields would be named boxes, one of them from coco=: use another"):
        with_fields(images, boxes=Boxes([[]] * 4), coco=file)
    batch = serve(with_fields(images, boxes=Boxes([[]] * 4), people=Coco(file)))
    assert {"boxes", "people", "people_classes", "people_image_ids"} <= batch.keys()


def test_rows_without_a_sample_have_no_image_id(images: Path, tmp_path: Path) -> None:
    source = with_fields(images, coco=write(tmp_path / "a.json", document()))
    assert serve(source, batch_size=6, drop_last=False, pad=True)["image_ids"].tolist() == [10, 20, 30, 40, -1, -1]
    assert serve(source, batch_size=6, drop_last=False)["image_ids"].tolist() == [10, 20, 30, 40]


def test_lvis_names_images_by_url_only(images: Path, tmp_path: Path) -> None:
    listed = [
        {
            "id": 10 * (number + 1),
            "coco_url": f"http://images.cocodataset.org/{name}",
            "neg_category_ids": [3],
            "not_exhaustive_category_ids": [],
            "width": SIDE,
            "height": SIDE,
        }
        for number, name in enumerate(FILES)
    ]
    kinds = [{**each, "frequency": "r", "synset": "x.n.01"} for each in document()["categories"]]
    file = write(tmp_path / "lvis.json", document(images=listed, categories=kinds))
    assert lefts(serve(with_fields(images, coco=file))) == [[4], [1, 3], [], [2]]


def test_images_of_the_file_that_are_not_in_the_data_are_counted(images: Path, tmp_path: Path) -> None:
    more = [*document()["images"], image(50, "c.png"), image(60, "d.png")]
    file = write(tmp_path / "a.json", document(images=more))
    with pytest.warns(
        UserWarning, match=r"a\.json': 2 of 6 images are not in this data and are left out, first 'c.png'"
    ):
        source = with_fields(images, coco=file)
    assert lefts(serve(source)) == [[4], [1, 3], [], [2]]
    with pytest.warns(UserWarning, match=r"a\.json': 2 of 6 images are not in this data"):
        with_fields(with_fields(images, text=["a"] * 4), coco=file)  # not a part of the data
    part, _ = split(images, 0.5, by_class=False)  # a part of the data contains a part of the file's images
    assert len(part) < len(FILES)
    boxes = serve(with_fields(part, coco=write(tmp_path / "b.json", document())), batch_size=len(part))["boxes"]
    assert len(boxes) == len(part)


def test_a_part_is_joined_like_the_whole_data(images: Path, tmp_path: Path) -> None:
    """Two images share a last name part and the file lists one of them: a part with the other image is refused."""
    listed = [image(1, "a.png"), image(2, "b.png"), image(3, "x/0001.png")]
    file = write(tmp_path / "a.json", document(images=listed, annotations=[box(5, 3)]))
    for other in ([3], [0, 3]):
        with pytest.raises(ValueError, match=r"y/0001\.png'\) and one of the whole data would both be image 'x/0001"):
            with_fields(images, coco=file, subset=other)
        with pytest.raises(ValueError, match="would both be image"):
            with_fields(concat([open_source(images, subset=other)]), mask=file)
    last = write(tmp_path / "c.json", document(images=[*listed[:2], image(3, "0001.png")], annotations=[box(5, 3)]))
    for other in ([2], [3]):
        with pytest.raises(ValueError, match=r"and one of the whole data would both be image '0001.png'"):
            with_fields(images, coco=last, subset=other)
        with pytest.raises(ValueError, match=r"and one of the whole data would both be image '0001.png'"):
            with_fields(open_source(images, subset=other), coco=last)
    assert lefts(serve(with_fields(images, coco=file, subset=[2, 0]), batch_size=2)) == [[5], []]
    more = write(tmp_path / "b.json", document(images=[*listed, image(4, "c.png")], annotations=[]))
    with pytest.warns(UserWarning, match="1 of 4 images are not in this data and are left out, first 'c.png'"):
        with_fields(images, coco=more, subset=[2, 0])


def test_windows_paths_are_found(images: Path, tmp_path: Path) -> None:
    listed = [image(1, r"data\a.png"), image(2, r"data\b.png")]
    file = write(tmp_path / "w.json", document(images=listed, annotations=[box(5, 2)]))
    assert lefts(serve(with_fields(images, coco=file, subset=[0, 1]), batch_size=2)) == [[], [5]]


def test_a_file_with_only_crowds_warns(images: Path, tmp_path: Path) -> None:
    counts = {"size": [SIDE, SIDE], "counts": [0, SIDE * SIDE]}
    crowds = [box(1, 20, iscrowd=1, segmentation=counts), box(2, 40, iscrowd=1, segmentation=counts)]
    alone = write(tmp_path / "a.json", document(annotations=crowds))
    more = write(tmp_path / "b.json", document(annotations=[*crowds, box(3, 10, segmentation=counts)]))
    for fields in ({"coco": alone}, {"mask": Masks(alone, of="instances")}):
        with pytest.warns(UserWarning, match=r"a\.json': all 2 annotations have iscrowd 1, and crowds are left out"):
            with_fields(images, **fields)
    with_fields(images, mask=Masks(alone), coco=more, each=Masks(more, of="instances"))  # warnings are errors here


def test_keypoints_are_swapped_as_requested(images: Path, tmp_path: Path) -> None:
    names = ["nose", "port", "starboard"]
    kinds = [{"id": 7, "name": "dog", "keypoints": names}, {"id": 3, "name": "cat", "keypoints": names}]
    points = [[9, 20, 2, 10, 20, 2, 50, 20, 2] for _ in range(4)]
    boxes = [{**each, "keypoints": own} for each, own in zip(document()["annotations"], points, strict=True)]
    file = write(tmp_path / "a.json", document(categories=kinds, annotations=boxes))
    mirror = ImagePipeline(size=(SIDE, SIDE), crop="full", flip=1.0)
    for swaps, wanted in (
        ((), [54.5, 53.5, 13.5]),
        ([(1, 2)], [54.5, 13.5, 53.5]),
        ([("port", "starboard")], [54.5, 13.5, 53.5]),
        ([("starboard", 0)], [13.5, 53.5, 54.5]),
    ):
        batch = serve(with_fields(images, coco=Coco(file, swaps=swaps)), pipeline=mirror, shuffle=False)
        assert batch["keypoints"][0][0, :, 0].tolist() == wanted
    for swaps, text in (
        ([("port", "left")], "swaps has the name 'left', but the keypoints of the file are nose, port, starboard"),
        ([(1, 3)], "swaps must be pairs of different keypoints from 0 to 2"),
        ([(1, 1)], "swaps must be pairs of different keypoints"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            with_fields(images, coco=Coco(file, swaps=swaps))
    with pytest.raises(ValueError, match="its categories have no keypoints"):
        with_fields(images, coco=Coco(write(tmp_path / "b.json", document()), swaps=[(0, 1)]))


def test_yolo_reads_the_names_of_data_yaml(images: Path, tmp_path: Path) -> None:
    write_yolo(tmp_path)
    for names in (["cat", "dog"], ("cat", "dog"), np.array(["cat", "dog"]), {0: "cat", 1: "dog"}, {1: "dog", 0: "cat"}):
        source = with_fields(images, yolo=Yolo(tmp_path, names))
        assert source.field_kinds["boxes"].classes == (b"cat", b"dog")  # type: ignore[attr-defined]
        assert serve(source)["boxes_classes"][0].tolist() == [1]
    for names, text in (
        ("cat", "names must be a list of class names or a dict of number -> name, got 'cat'"),
        ({1: "cat", 2: "dog"}, "names must have the numbers from 0 to 1, got [1, 2]"),
        ({"0": "cat"}, "names must have the numbers from 0 to 0, got ['0']"),
        ([1, 2], "names must be a list of class names"),
        ({"cat", "dog"}, "names must be a list of class names"),
        (3, "names must be a list of class names"),
        (["cat"], "a.txt': 1 0.5 0.5 0.5 0.5: class numbers must be from 0 to 0"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            with_fields(images, yolo=Yolo(tmp_path, names))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="names must be different if boxes have names, got 'cat' twice"):
        with_fields(images, boxes=Boxes([[[0, 0, 1, 1]]] * 4, [["cat"]] * 4, names=["cat", "dog", "cat"]))


def test_first_class_shifts_the_class_numbers(images: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", document())
    write_yolo(tmp_path)
    plain = serve(with_fields(images, coco=file))
    for first in (0, 1, 5):
        batch = serve(with_fields(images, coco=Coco(file, first_class=first)))
        for own, others in zip(batch["boxes_classes"], plain["boxes_classes"], strict=True):
            assert own.tolist() == [number + first for number in others.tolist()]
        padded = serve(with_fields(images, coco=Coco(file, first_class=first, padded=True)))
        assert padded["boxes_classes"].tolist() == [[1 + first, -1], [1 + first, first], [-1, -1], [first, -1]]
        yolo = serve(with_fields(images, yolo=Yolo(tmp_path, first_class=first)))
        assert yolo["boxes_classes"][0].tolist() == [1 + first]
        own = serve(with_fields(images, boxes=Boxes([[[0, 0, 9, 9]]] * 4, [[2]] * 4, first_class=first)))
        assert [each.tolist() for each in own["boxes_classes"]] == [[2 + first]] * 4
    for first in (-1, 0.5, True, "1"):
        with pytest.raises(ValueError, match="first_class of Coco must be"):
            Coco(file, first_class=first)  # type: ignore[arg-type]


def test_another_first_class_changes_the_fingerprint(images: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", document())
    one, two = (with_fields(images, coco=Coco(file, first_class=first)) for first in (0, 1))
    assert one.fingerprint != two.fingerprint
    with pytest.raises(ValueError, match="boxes differ"):
        concat([one, two])


def test_joined_files_do_not_share_ids(images: Path, tmp_path: Path) -> None:
    """Boxes of two files with different category ids are joined by number; their ids are unknown."""
    kinds = [{"id": 3, "name": "cat"}, {"id": 9, "name": "dog"}]
    boxes = [{**each, "category_id": {7: 9, 3: 3}[each["category_id"]]} for each in document()["annotations"]]
    other = document(categories=kinds, annotations=boxes)
    files = [write(tmp_path / f"{number}.json", content) for number, content in enumerate((document(), other))]
    sources = [with_fields(images, coco=file) for file in files]
    for joined, ids in ((concat([sources[0], sources[0]]), [3, 7]), (concat(sources), [None, None])):
        with create_loader(joined, pipeline=WHOLE, batch_size=8, dtype=torch.uint8, workers=0) as loader:
            assert loader.categories == {"boxes": {n: (ids[n], name) for n, name in enumerate(("cat", "dog"))}}
            assert lefts(next(iter(loader))) == [[4], [1, 3], [], [2]] * 2
    plain = with_fields(images, boxes=Boxes([[[5, 5, 9, 9]]] * 4, [[1]] * 4, names=["cat", "dog"]))
    both = concat([with_fields(sources[0], image_ids=["a"] * 4), with_fields(plain, image_ids=["b"] * 4)])
    assert lefts(serve(both, batch_size=8)) == [[4], [1, 3], [], [2], [5], [5], [5], [5]]


def test_replacing_boxes_replaces_their_keypoints(images: Path, tmp_path: Path) -> None:
    kinds = [{"id": 7, "name": "dog", "keypoints": ["nose"]}, {"id": 3, "name": "cat"}]
    boxes = [{**each, "keypoints": [9, 20, 2]} for each in document()["annotations"]]
    source = with_fields(images, coco=write(tmp_path / "a.json", document(categories=kinds, annotations=boxes)))
    batch = serve(with_fields(source, boxes=Boxes([[[5, 5, 9, 9]]] * 4)))
    assert batch.keys() == {"images", "labels", "boxes", "boxes_classes", "image_ids"}
    assert lefts(batch) == [[5]] * 4


def test_a_cache_without_its_images_serves_ids_and_refuses_other_sizes(images: Path, tmp_path: Path) -> None:
    other = document()
    other["images"][3]["height"] = 2 * SIDE
    for name, content in (("good", document()), ("bad", other)):
        source = with_fields(images, coco=Coco(write(tmp_path / f"{name}.json", content), first_class=1))
        cache = tmp_path / f"{name}.h5"
        with create_loader(source, pipeline=WHOLE, backend="hdf5", cache=cache, batch_size=4, workers=0) as loader:
            assert loader.categories["boxes"][2] == (7, "dog")
        with create_loader(cache, pipeline=WHOLE, backend="hdf5", batch_size=4, workers=0) as loader:
            assert loader.categories == {"boxes": {1: (3, "cat"), 2: (7, "dog")}}
            if name == "bad":
                with pytest.raises(LoaderError, match="annotated at 64x128 pixels, but the image has 64x64"):
                    next(iter(loader))
                continue
            batch = next(iter(loader))
            assert (lefts(batch), batch["image_ids"].tolist()) == ([[4], [1, 3], [], [2]], [10, 20, 30, 40])


def test_text_files_without_an_image_are_counted(images: Path, tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).with_suffix(".txt").write_text("1 0.5 0.5 0.5 0.5\n")
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    (tmp_path / "a" / "._a.txt").write_bytes(b"\0\5\26\7")  # written by macOS next to files
    assert len(serve(with_fields(images, yolo=tmp_path))["boxes"][0]) == 1
    (tmp_path / "a" / "A.txt").write_text("0 0.5 0.5 1 1\n")
    (tmp_path / "b.txt").write_text("0 0.5 0.5 1 1\n")
    with pytest.warns(
        UserWarning, match="2 text files of .* have no image with their name and are left out, first 'a/A"
    ):
        with_fields(images, yolo=tmp_path)
    part, _ = split(images, 0.75, by_class=False)
    with pytest.warns(UserWarning, match="2 text files of"):  # not for images of another part
        with_fields(part, yolo=Yolo(tmp_path, ["cat", "dog"]))
    (tmp_path / "b.txt").rename(tmp_path / "b.TXT")
    with pytest.warns(UserWarning, match="2 text files of"):
        with_fields(images, yolo=tmp_path)


def test_masks_of_a_json_file_belong_to_its_images(images: Path, tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    square = [[0, 0, SIDE, 0, SIDE, SIDE, 0, SIDE]]
    boxes = [box(1, 20, 7, segmentation=square, area=None), box(2, 40, 3, segmentation=square)]
    file = write(tmp_path / "a.json", document(annotations=boxes))
    masks = serve(with_fields(images, mask=Masks(file)))["mask"]
    assert [mask.unique().tolist() for mask in masks] == [[0], [2], [0], [1]]
