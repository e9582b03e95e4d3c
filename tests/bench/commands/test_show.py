"""`penstock show`: a picture of samples, as a file or in the terminal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import penstock_here
from PIL import Image

NUM_PHOTOS = 9


def test_a_picture_is_written_with_masks(photos: Path, tmp_path: Path) -> None:
    for path in photos.rglob("*.jpg"):
        mask = tmp_path / "masks" / path.relative_to(photos).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as photo:
            Image.fromarray(np.full(photo.size[::-1], 3, np.uint8)).save(mask)
    out, heights = tmp_path / "look.png", []
    for fields in ((), ("--mask", tmp_path / "masks")):
        done = penstock_here("show", photos, "--out", out, "--size", 32, "--eval", "--subset", "::3", "-n", 6, *fields)
        *lines, last = done.stdout.splitlines()
        assert (done.returncode, last, done.stderr) == (0, f"3 samples: {out}", "")
        assert [line[: line.index(".jpg")] for line in lines] == [f"{n}: class{n}; class{n}/000{n}" for n in range(3)]
        with Image.open(out) as picture:
            heights.append(picture.height)
    assert heights[1] > heights[0]  # a line for the values of the mask


def test_the_picture_is_drawn_in_a_terminal(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("show", photos, "--size", 32, "-n", 2, "--eval")
    refused = penstock_here(*options)
    message = "penstock: standard output is not a terminal: pass --out look.png\n"
    assert (refused.returncode, refused.stderr) == (2, message)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    done = penstock_here(*options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("▀") > 200
    assert "class0" in done.stdout


def test_the_suffix_is_the_format_of_the_picture(photos: Path, tmp_path: Path) -> None:
    for suffix, wanted in ((".jpg", "JPEG"), (".WEBP", "WEBP"), (".png", "PNG")):
        out = tmp_path / f"look{suffix}"
        done = penstock_here("show", photos, "--out", out, "--size", 32, "--eval", "-n", 2)
        assert (done.returncode, done.stderr) == (0, "")
        with Image.open(out) as picture:
            assert picture.format == wanted
    for name in ("look.xyz", "look"):
        refused = penstock_here("show", photos, "--out", tmp_path / name, "--size", 32)
        assert refused.returncode == 2
        assert refused.stderr.count("\n") == 1
        assert "a picture is saved as one of .png, .jpg" in refused.stderr
        assert not (tmp_path / name).exists()


def test_texts_beside_images_are_drawn(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in sorted(photos.rglob("*.jpg"))[:3]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / f"{path.stem}.txt").write_text(f"words {path.stem}")
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = penstock_here("show", tmp_path, "--text", "txt", "--size", 32, "--eval")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("words ") == 3
