"""Left and right keypoints are found by name, in any spelling, and swap places in a mirror image."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.loaders import Coco, Keypoints, create_loader, with_fields
from penstock.pipelines import ImagePipeline

SIDE = 100
FORMS = {
    "left_eye": "{side}_{part}",
    "eye_left": "{part}_{side}",
    "left eye": "{side} {part}",
    "left-eye": "{side}-{part}",
    "eye.left": "{part}.{side}",
    "upper_left_eye": "upper_{side}_{part}",
    "lefteye": "{side}{part}",
}
CASES: dict[str, Any] = {"small": str.lower, "large": str.upper, "title": str.title}
SIDES = {"words": ("left", "right"), "letters": ("l", "r")}


def serve(folder: Path, names: list[str], flip: float = 1.0, **spec: Any) -> tuple[list[float], list[str]]:
    """Return the x of each keypoint after a mirror, and the warnings. All keypoints have different places."""
    Image.new("RGB", (SIDE, SIDE)).save(folder / "a.png")
    points = [value for at in range(len(names)) for value in (10 * at + 5, 50, 2)]
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, SIDE, SIDE], "keypoints": points}
    document = {
        "images": [{"id": 1, "file_name": "a.png", "width": SIDE, "height": SIDE}],
        "annotations": [box],
        "categories": [{"id": 1, "name": "x", "keypoints": names}],
    }
    (folder / "k.json").write_text(json.dumps(document))
    source = with_fields(folder, coco=Coco(folder / "k.json", **spec))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        pipeline = ImagePipeline(size=(SIDE, SIDE), crop="full", flip=flip)
        with create_loader(source, pipeline=pipeline, batch_size=1, workers=0) as loader:
            (batch,) = loader
    return batch["keypoints"][0][0, :, 0].tolist(), [str(each.message) for each in seen]


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", FORMS)
def test_a_pair_is_found_in_any_spelling(tmp_path: Path, form: str, case: str, sides: str) -> None:
    if form == "lefteye" and sides == "letters":
        pytest.skip("a single letter within a word is ambiguous")
    names = [CASES[case](FORMS[form].format(side=side, part="eye")) for side in SIDES[sides]]
    found, messages = serve(tmp_path, ["nose", *names])
    assert found == [SIDE - 5.5, SIDE - 25.5, SIDE - 15.5]
    assert not messages


@pytest.mark.parametrize("points", [[5, 5, 2], [0, 0, 0], [], None])
def test_keypoints_that_no_category_names_are_left_out_with_a_warning(tmp_path: Path, points: Any) -> None:
    Image.new("RGB", (SIDE, SIDE)).save(tmp_path / "a.png")
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, SIDE, SIDE], "keypoints": points}
    image = {"id": 1, "file_name": "a.png", "width": SIDE, "height": SIDE}
    document = {"images": [image], "annotations": [box], "categories": [{"id": 1, "name": "x"}]}
    (tmp_path / "k.json").write_text(json.dumps(document))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        source = with_fields(tmp_path, coco=tmp_path / "k.json")
    assert "keypoints" not in source.field_kinds
    messages = [str(each.message) for each in seen if "the keypoints of 1 annotations" in str(each.message)]
    assert len(messages) == (points == [5, 5, 2])


@pytest.mark.parametrize(
    "names", [("leftEye", "rightEye"), ("LEye", "REye"), ("left_eye", "Right_Eye"), ("EyeL", "EyeR")]
)
def test_names_in_camel_case_are_paired(tmp_path: Path, names: tuple[str, str]) -> None:
    assert serve(tmp_path, list(names)) == ([SIDE - 15.5, SIDE - 5.5], [])


@pytest.mark.parametrize(
    "names",
    [("nose", "tail"), ("left_eye", "right_ear"), ("left_eye", "l_eye", "right_eye"), ("left_right", "left_left")],
)
def test_points_that_are_not_a_pair_stay_and_a_mirror_warns_once(tmp_path: Path, names: tuple[str, ...]) -> None:
    found, messages = serve(tmp_path, list(names))
    assert found == [SIDE - 5.5 - 10 * at for at in range(len(names))]
    assert len(messages) == 1
    assert "swaps=" in messages[0]
    assert "flip" in messages[0]
    assert serve(tmp_path, list(names), flip=0.0)[1] == serve(tmp_path, list(names), swaps=())[1] == []
    assert serve(tmp_path, list(names), swaps=[(0, 1)])[0][:2] == [SIDE - 15.5, SIDE - 5.5]


@pytest.mark.parametrize(
    "others",
    [
        ("left_ankle", "right_ankel"),
        ("left_wing", "tail"),
        ("LHIP", "RHIP"),
        ("hipl", "hipr"),
        ("l", "x"),
        ("left_lip_right", "lip"),
    ],
)
def test_points_without_a_partner_warn_next_to_pairs(tmp_path: Path, others: tuple[str, str]) -> None:
    names = ["left_eye", "right_eye", *others]
    found, messages = serve(tmp_path, names)
    assert found == [SIDE - 15.5, SIDE - 5.5, SIDE - 25.5, SIDE - 35.5]
    assert len(messages) == 1
    assert "swaps=" in messages[0]
    assert serve(tmp_path, names, swaps=[(0, 1)])[1] == []
    assert serve(tmp_path, ["left_eye", "right_eye", "nose", "tail", "ear", "rib"])[1] == []


def test_all_sides_in_a_name_are_swapped(tmp_path: Path) -> None:
    corners = [f"{eye}_eye_{corner}_corner" for eye in ("left", "right") for corner in ("left", "right")]
    names = ["left_ear", "right_ear", *corners]
    wanted = [SIDE - 5.5 - 10 * at for at in (1, 0, 5, 4, 3, 2)]
    assert serve(tmp_path, names) == (wanted, [])


def test_points_in_an_array_warn_unless_swaps_are_given() -> None:
    images = (np.zeros((2, 8, 8, 3), np.uint8), np.arange(2))
    for swaps, is_warned in ((None, True), ((), False), ([(0, 1)], False)):
        source = with_fields(images, keypoints=Keypoints(np.ones((2, 2, 2)), swaps=swaps))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            create_loader(source, pipeline=ImagePipeline(size=(8, 8)), batch_size=1, workers=0).close()
        assert any("swaps=" in str(each.message) for each in seen) == is_warned
