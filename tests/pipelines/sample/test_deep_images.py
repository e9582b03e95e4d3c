"""Images of 16 bits, which depth=16 keeps, and TIFF: levels as written, orientation, damage."""

from __future__ import annotations

import struct
import warnings
import zlib

import numpy as np
import pytest
from odd_images import png

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.sample.formats import check_end, read_format
from penstock.pipelines.spec import ImagePipeline

RGB = np.random.default_rng(0).integers(0, 65536, (13, 9, 3), np.uint16)
GREY, ALPHA = RGB[..., :1], RGB[..., 1:2]
KEEPING, USUAL = ImagePipeline(depth=16), ImagePipeline()


def tiff(pixels: np.ndarray, order: str = "<", *, compressed: bool = False, rows: int = 4, **more: int) -> bytes:
    """A TIFF of pixels [h, w, samples], uint8 or uint16, in strips of `rows`; more: other entries, as SHORTs "t274"."""
    height, width, samples = pixels.shape
    kind = pixels.dtype.newbyteorder(order) if pixels.dtype == np.uint16 else pixels.dtype
    strips = [pixels[top : top + rows].astype(kind).tobytes() for top in range(0, height, rows)]
    strips = [zlib.compress(strip) for strip in strips] if compressed else strips
    entries = {256: (4, [width]), 257: (4, [height]), 258: (3, [kind.itemsize * 8] * samples)}
    entries |= {259: (3, [8 if compressed else 1]), 262: (3, [1 if samples < 3 else 2]), 277: (3, [samples])}
    entries |= {278: (4, [rows]), 273: (4, [0] * len(strips)), 279: (4, list(map(len, strips)))}
    entries |= {338: (3, [2])} if samples in (2, 4) else {}
    entries |= {int(tag[1:]): (3, [value]) for tag, value in more.items()}
    end = 8 + 2 + 12 * len(entries) + 4
    place = end + sum(size for size in (len(v) * (2 if k == 3 else 4) for k, v in entries.values()) if size > 4)
    entries[273] = (4, [place + sum(map(len, strips[:number])) for number in range(len(strips))])
    table, long = b"", b""
    for tag in sorted(entries):
        type_, values = entries[tag]
        packed = struct.pack(f"{order}{len(values)}{'H' if type_ == 3 else 'I'}", *values)
        if len(packed) > 4:
            packed, long = struct.pack(f"{order}I", end + len(long)), long + packed
        table += struct.pack(f"{order}HHI", tag, type_, len(values)) + packed.ljust(4, b"\0")
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, len(entries))
    return head + table + bytes(4) + long + b"".join(strips)


FILES: dict[str, tuple[bytes, np.ndarray]] = {
    "grey PNG": (png(GREY, depth=16, colour=0), GREY),
    "interlaced grey PNG": (png(GREY, depth=16, colour=0, interlaced=True), GREY),
    "grey PNG with alpha": (png(np.dstack([GREY, ALPHA]), depth=16, colour=4), GREY),
    "PNG": (png(RGB, depth=16, colour=2), RGB),
    "interlaced PNG": (png(RGB, depth=16, colour=2, interlaced=True), RGB),
    "PNG with alpha": (png(np.dstack([RGB, ALPHA]), depth=16, colour=6), RGB),
} | {
    f"TIFF {order}{', compressed' if compressed else ''}, {pixels.shape[2]} samples": (
        tiff(pixels, order, compressed=compressed),
        pixels if pixels.shape[2] == 1 else pixels[..., :3],
    )
    for order in "<>"
    for compressed in (False, True)
    for pixels in (GREY, RGB, np.dstack([RGB, ALPHA]))
}


@pytest.mark.parametrize("name", FILES)
def test_all_16_bits_are_kept_on_request(name: str) -> None:
    data, pixels = FILES[name]
    found = ImageDecoder(KEEPING).full(data)
    assert found.dtype == np.uint16
    assert np.array_equal(found, np.broadcast_to(pixels, found.shape))
    shallow = ImageDecoder(USUAL).full(data)
    assert shallow.dtype == np.uint8
    assert np.array_equal(shallow, np.broadcast_to(pixels >> 8, shallow.shape))


def test_images_of_8_bits_are_the_same_as_in_any_pipeline() -> None:
    pixels = (RGB >> 8).astype(np.uint8)
    for data in (tiff(pixels), tiff(pixels, ">", compressed=True), png(pixels, depth=8, colour=2)):
        for pipeline in (KEEPING, USUAL):
            found = ImageDecoder(pipeline).full(data)
            assert found.dtype == np.uint8
            assert np.array_equal(found, pixels)
    grey = ImageDecoder(USUAL).full(tiff(pixels[..., :1]))
    assert np.array_equal(grey, np.repeat(pixels[..., :1], 3, axis=2))


def test_a_loss_of_bits_causes_a_warning() -> None:
    data = FILES["PNG"][0]
    with pytest.warns(UserWarning, match=r"16-bit images become 8-bit ones: ImagePipeline\(depth=16\) keeps"):
        ImageDecoder(USUAL).full(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ImageDecoder(KEEPING).full(data)


@pytest.mark.parametrize("order", "<>")
def test_a_tiff_is_turned_upright_only_on_request(order: str) -> None:
    data = tiff(RGB, order, t274=6)
    assert np.array_equal(ImageDecoder(KEEPING).full(data), RGB)
    upright = ImageDecoder(ImagePipeline(depth=16, exif="apply")).full(data)
    assert np.array_equal(upright, np.rot90(RGB, -1))


def test_a_tiff_cut_anywhere_is_truncated() -> None:
    for whole in (tiff(RGB), tiff(GREY, ">", compressed=True)):
        read_format(whole)
        check_end(whole, "TIFF")
        for cut in range(4, len(whole)):
            with pytest.raises(LoaderError) as caught:
                check_end(whole[:cut], read_format(whole[:cut]).name)
            assert caught.value.code == "E-TRUNC", cut


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (tiff(RGB, t339=3), "E-UNSUPPORTED"),
        (tiff(GREY, t339=2), "E-UNSUPPORTED"),
        (tiff(GREY, t258=32), "E-UNSUPPORTED"),
        (tiff(GREY, t257=0), "E-CORRUPT"),
        (tiff(RGB, t279=5), "E-CORRUPT"),
        (tiff(GREY, t256=60_000, t257=60_000), "E-BOMB"),
        (tiff(GREY).replace(struct.pack("<HHI", 256, 4, 1), struct.pack("<HHI", 255, 4, 1)), "E-CORRUPT"),
        (tiff(GREY).replace(struct.pack("<HHI", 257, 4, 1), struct.pack("<HHI", 257, 4, 0)), "E-CORRUPT"),
        (tiff(np.dstack([RGB, ALPHA]), t338=1), "E-UNSUPPORTED"),
    ],
)
def test_other_tiffs_are_rejected(data: bytes, code: str) -> None:
    with pytest.raises(LoaderError) as caught:
        ImageDecoder(KEEPING).full(data)
    assert caught.value.code == code
