"""Mask values are served unchanged or refused: none wraps, none is scaled, and a lost foreground warns."""

from __future__ import annotations

import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_images import encoded
from PIL import Image

from penstock.loaders import LoaderError, Masks, create_loader, open_source, with_fields
from penstock.pipelines import ImagePipeline

SIDE = 16
WHOLE = ImagePipeline(size=(SIDE, SIDE), crop="full", flip=0.0)


def grey_png(values: np.ndarray, bits: int) -> bytes:
    """Encode a grey PNG of 1, 2, 4, 8 or 16 bits. Pillow cannot write few bits."""
    rows = [b"\0" + pack(row, bits) for row in values]

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", *values.shape[::-1], bits, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"".join(rows))) + chunk(b"IEND", b"")


def pack(row: np.ndarray, bits: int) -> bytes:
    if bits == 16:
        return row.astype(">u2").tobytes()
    places = np.arange(bits - 1, -1, -1)
    return np.packbits((row[:, None] >> places & 1).astype(np.uint8).ravel()).tobytes()


def serve(folder: Path, masks: Any, **spec: Any) -> tuple[np.ndarray, list[str]]:
    (folder / "images").mkdir(exist_ok=True)
    Image.new("RGB", (SIDE, SIDE)).save(folder / "images" / "a.png")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        source = with_fields(folder / "images", mask=Masks(masks, **spec))
        with create_loader(source, pipeline=WHOLE, batch_size=1, workers=0, shuffle=False, drop_last=False) as loader:
            (batch,) = loader
    return batch["mask"][0].numpy(), [str(each.message) for each in seen if "ignore_index" in str(each.message)]


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_grey_pngs_of_few_bits_are_read_as_numbers(tmp_path: Path, bits: int) -> None:
    for seed in range(5):
        values = np.random.default_rng(seed).integers(0, min(1 << bits, 250), (SIDE, SIDE))
        (tmp_path / "m.png").write_bytes(grey_png(values, bits))
        found, _ = serve(tmp_path, [tmp_path / "m.png"])
        assert np.array_equal(found, values)


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
@pytest.mark.parametrize("value", [-(2**31), -257, -2, -1, 0, 7, 255, 256, 70_000, 2**31 - 1])
def test_values_outside_the_type_are_refused_with_the_file(tmp_path: Path, dtype: str, value: int) -> None:
    values = np.zeros((SIDE, SIDE), np.int32)
    values[3, 4] = value
    (tmp_path / "m.tif").write_bytes(encoded(values, "TIFF"))
    if dtype == "uint8" and not 0 <= value <= 255:
        with pytest.raises(LoaderError, match=rf"m\.tif.*values from {min(value, 0)} to {max(value, 0)}.*int32"):
            serve(tmp_path, [tmp_path / "m.tif"], dtype=dtype)
    else:
        assert np.array_equal(serve(tmp_path, [tmp_path / "m.tif"], dtype=dtype)[0], values)


@pytest.mark.parametrize("how", ["files", "source", "array"])
def test_masks_of_0_and_255_warn_about_a_lost_foreground(tmp_path: Path, how: str) -> None:
    values = np.zeros((SIDE, SIDE), np.uint8)
    values[:, 5:] = 1

    def count_warnings(mask: np.ndarray, **spec: Any) -> int:
        folder = tmp_path / f"m{mask.max()}"
        folder.mkdir(exist_ok=True)
        (folder / "a.png").write_bytes(encoded(mask, "PNG"))
        masks = {"files": folder, "source": open_source(folder), "array": mask[None]}[how]
        return len(serve(tmp_path, masks, **spec)[1])

    border = values * 3
    border[0] = 255
    assert count_warnings(values * 255) == count_warnings(values * 255, ignore_index=255) == 1
    assert count_warnings(values * 7, ignore_index=7) == 1
    assert (
        count_warnings(values)
        == count_warnings(border)
        == count_warnings(values * 255, ignore_index=254)
        == count_warnings(values * 0)
        == 0
    )


def tiff(values: np.ndarray, bits: int, sample: int = 1, photometric: int = 1) -> bytes:
    """Encode an uncompressed grey TIFF. Pillow writes neither few bits nor signed bytes."""
    rows = b"".join(pack(row, bits) if bits < 8 else row.tobytes() for row in values)
    height, width = values.shape
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: photometric, 277: 1, 278: height, 279: len(rows)}
    tags |= {273: 8 + 2 + 12 * 10 + 4, 339: sample}
    listed = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + listed + struct.pack("<I", 0) + rows


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_grey_tiffs_of_few_bits_are_read_as_numbers(tmp_path: Path, bits: int) -> None:
    values = np.random.default_rng(bits).integers(0, min(1 << bits, 250), (SIDE, SIDE), np.uint8)
    (tmp_path / "m.tif").write_bytes(tiff(values, bits))
    assert np.array_equal(serve(tmp_path, [tmp_path / "m.tif"])[0], values)


@pytest.mark.parametrize(
    ("value", "dtype", "sample"), [(-1, "int8", 2), (-128, "int8", 2), (3_000_000_000, "uint32", 1)]
)
def test_signed_values_of_tiffs_are_kept(tmp_path: Path, value: int, dtype: str, sample: int) -> None:
    values = np.zeros((SIDE, SIDE), dtype)
    values[3, 4] = value
    (tmp_path / "m.tif").write_bytes(tiff(values, values.itemsize * 8, sample))
    with pytest.raises(LoaderError, match=rf"m\.tif.*values from {min(value, 0)} to {max(value, 0)}"):
        serve(tmp_path, [tmp_path / "m.tif"])
    if value < 0:
        assert np.array_equal(serve(tmp_path, [tmp_path / "m.tif"], dtype="int32")[0], values)


@pytest.mark.parametrize("highest", [1, 3, 20, 254, 255, 256, 1000, 65534, 65535])
def test_pgm_values_are_not_scaled_to_the_maximum(tmp_path: Path, highest: int) -> None:
    values = np.random.default_rng(highest).integers(0, highest, (SIDE, SIDE), endpoint=True)
    levels = values.astype(np.uint8 if highest < 256 else ">u2").tobytes()
    (tmp_path / "m.pgm").write_bytes(b"P5 # of classes\n%d\n%d %d\n" % (SIDE, SIDE, highest) + levels)
    assert np.array_equal(serve(tmp_path, [tmp_path / "m.pgm"], dtype="int32")[0], values)


def test_tiffs_that_change_values_are_refused(tmp_path: Path) -> None:
    values = np.full((SIDE, SIDE), 3, np.uint8)
    (tmp_path / "m.tif").write_bytes(tiff(values, 8, photometric=0))
    with pytest.raises(LoaderError, match="counts levels from white"):
        serve(tmp_path, [tmp_path / "m.tif"])
    Image.fromarray(values).save(tmp_path / "m.tif", compression="jpeg")
    with pytest.raises(LoaderError, match="lossless"):
        serve(tmp_path, [tmp_path / "m.tif"])
