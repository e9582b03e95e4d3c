"""The corpus of odd images is itself sound: references that Pillow confirms, tolerances that tell right from wrong."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import warnings
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import odd_images
import pytest
from odd_images import ANY, OddImage, corpus
from PIL import Image, ImageOps, UnidentifiedImageError

from penstock.pipelines.errors import ERROR_CODES
from penstock.pipelines.spec import DEFAULT_MAX_PIXELS

ACCEPTED = [odd for odd in corpus() if odd.code is None]
REJECTED = [odd for odd in corpus() if odd.code not in (None, ANY)]


def ids(odd: OddImage) -> str:
    return odd.name


def pillow_rgb(data: bytes, *, upright: bool = False) -> np.ndarray:
    """The contract by Pillow's own rules, but 16-bit grey scaled rather than saturated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # corrupt EXIF, palettes with alpha: decoders must keep quiet
        image = Image.open(io.BytesIO(data))
        image.load()
        if upright:
            image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I"):
            return np.repeat((np.asarray(image) >> 8).astype(np.uint8)[..., None], 3, axis=2)
        return np.asarray(image.convert("RGB"))


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(float) - b).mean())


def digest(images: list[OddImage]) -> str:
    whole = hashlib.sha256()
    for odd in images:
        whole.update(repr((odd.name, odd.code, odd.tolerance, odd.note)).encode())
        for part in (odd.data, odd.reference, odd.oriented_reference):
            whole.update(b"-" if part is None else bytes(part))
    return whole.hexdigest()


def test_size_names_and_codes() -> None:
    names = Counter(odd.name for odd in corpus())
    assert len(corpus()) >= 40
    assert max(names.values()) == 1
    assert {odd.code for odd in REJECTED} == {
        *("E-EMPTY", "E-FORMAT", "E-TRUNC", "E-EOI", "E-CORRUPT", "E-BOMB", "E-UNSUPPORTED")
    }
    assert {odd.code for odd in REJECTED} <= set(ERROR_CODES)
    assert max(len(odd.data) for odd in corpus()) < 250_000


def test_references_are_rgb_and_present_where_due() -> None:
    for odd in corpus():
        assert (odd.reference is not None) == (odd.code in (None, ANY)), odd.name
        for reference in (odd.reference, odd.oriented_reference):
            if reference is not None:
                assert (reference.dtype, reference.ndim, reference.shape[-1]) == (np.uint8, 3, 3), odd.name
                assert reference.flags.c_contiguous, odd.name
    turned = [odd for odd in corpus() if odd.oriented_reference is not None]
    assert [odd.name for odd in turned] == [f"jpeg_orientation_{value}" for value in range(1, 9)]


@pytest.mark.parametrize("odd", ACCEPTED, ids=ids)
def test_pillow_agrees(odd: OddImage) -> None:
    assert odd.reference is not None
    pixels = pillow_rgb(odd.data)
    assert pixels.shape == odd.reference.shape
    assert distance(pixels, odd.reference) <= odd.tolerance
    upright = odd.reference if odd.oriented_reference is None else odd.oriented_reference
    turned = pillow_rgb(odd.data, upright=True)
    assert turned.shape == upright.shape
    assert distance(turned, upright) <= odd.tolerance


@pytest.mark.parametrize("odd", ACCEPTED, ids=ids)
def test_tolerances_tell_right_from_wrong(odd: OddImage) -> None:
    right = odd.reference
    assert right is not None
    wrong = {"negative": 255 - right, "black": np.zeros_like(right), "white": np.full_like(right, 255)}
    height, width = right.shape[:2]
    if height > 17 and width > 17:
        wrong |= {"mirrored": right[:, ::-1], "upside down": right[::-1], "shifted": np.roll(right, 4, axis=1)}
        wrong["last rows missing"] = np.where(np.arange(height)[:, None, None] < 0.9 * height, right, 128)
    if np.ptp(right, axis=2).max() > 0:
        wrong |= {"BGR": right[..., ::-1], "grey": np.repeat(right.mean(2, keepdims=True), 3, axis=2)}
    assert {name for name, pixels in wrong.items() if distance(pixels, right) <= odd.tolerance} == set()


@pytest.mark.parametrize("odd", [o for o in REJECTED if o.code not in ("E-BOMB", "E-FORMAT")], ids=ids)
def test_pillow_rejects_what_is_broken(odd: OddImage) -> None:
    with pytest.raises((OSError, SyntaxError, UnidentifiedImageError)):
        pillow_rgb(odd.data)


def webp_pixels(data: bytes) -> int:
    kind, body = data[12:16], data[20:]
    if kind == b"VP8X":
        return (int.from_bytes(body[4:7], "little") + 1) * (int.from_bytes(body[7:10], "little") + 1)
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return ((bits & 0x3FFF) + 1) * ((bits >> 14 & 0x3FFF) + 1)
    assert kind == b"VP8 "
    return (int.from_bytes(body[6:8], "little") & 0x3FFF) * (int.from_bytes(body[8:10], "little") & 0x3FFF)


@pytest.mark.parametrize("odd", [o for o in REJECTED if o.code == "E-BOMB"], ids=ids)
def test_bombs_declare_too_many_pixels(odd: OddImage, monkeypatch: pytest.MonkeyPatch) -> None:
    # Pillow refuses above twice this limit, when it has read the header and before it allocates.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", DEFAULT_MAX_PIXELS // 2)
    if odd.name.startswith("bomb_webp"):  # Pillow has libwebp allocate first: ask the header itself
        assert webp_pixels(odd.data) > DEFAULT_MAX_PIXELS
        return
    with pytest.raises(Image.DecompressionBombError):
        Image.open(io.BytesIO(odd.data))


def test_the_png_bomb_is_a_valid_file(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = next(odd for odd in corpus() if odd.name == "bomb_png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with Image.open(io.BytesIO(bomb.data)) as image:
        assert (image.size, image.mode) == ((20_000, 20_000), "1")
        image.verify()  # the CRCs
    length = int.from_bytes(bomb.data[33:37], "big")
    assert bomb.data[37:41] == b"IDAT"
    assert len(zlib.decompress(bomb.data[41 : 41 + length])) == 20_000 * (1 + 20_000 // 8)
    assert len(bomb.data) < 50_000


def test_foreign_files_have_no_magic_bytes_of_ours() -> None:
    ours = (b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM")
    foreign = [odd for odd in REJECTED if odd.code == "E-FORMAT"]
    assert len(foreign) >= 10
    for odd in foreign:
        assert not odd.data.startswith(ours), odd.name
        assert not (odd.data[:4] == b"RIFF" and odd.data[8:12] == b"WEBP"), odd.name


def test_two_builds_in_two_processes_are_equal() -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(Path(odd_images.__file__).parent)!r}, {str(Path(__file__).parent)!r}]\n"
        "from test_odd_corpus import digest; from odd_images import corpus; print(digest(corpus()))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == digest(corpus())
    assert len({digest([odd]) for odd in corpus()}) == len(corpus())
