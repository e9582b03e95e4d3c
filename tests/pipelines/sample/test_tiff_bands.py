"""TIFFs with any channels, types, layouts and compressions, written by tifffile and read as stored."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
from band_images import decode, grey_tiff, refuse

from penstock.pipelines import ImagePipeline
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.fields.field_kinds import FieldKind, TargetRules
from penstock.pipelines.fields.masks import decode_mask
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.sample.target_decoder import TargetDecoder

tifffile = pytest.importorskip("tifffile")

TYPES = ("u1", "u2", "i2", "u4", "f4", "f8", "f2")


def tiff(levels: np.ndarray, **more: Any) -> bytes:
    """A TIFF of [h, w, channels]: contiguous, or planar with planarconfig="separate"."""
    file = io.BytesIO()
    more = {"photometric": "minisblack", "planarconfig": "contig", **more}
    stored = levels.transpose(2, 0, 1) if more["planarconfig"] == "separate" else levels
    if levels.shape[2] == 1:
        stored, more["planarconfig"] = levels[:, :, 0], None
    tifffile.imwrite(file, stored, **more)
    return file.getvalue()


def pages(*images: np.ndarray, of_page: Sequence[dict[str, Any]] = (), **of_all: Any) -> bytes:
    file = io.BytesIO()
    with tifffile.TiffWriter(file) as writer:
        for image, more in zip_longest(images, of_page, fillvalue={}):
            planar = "contig" if image.ndim == 3 else None
            writer.write(image, **{"photometric": "minisblack", "planarconfig": planar, **of_all, **more})
    return file.getvalue()


def test_every_layout_is_read_as_written() -> None:
    codecs = [None, "zlib", "packbits", "lzma"]
    try:
        import imagecodecs  # noqa: F401

        codecs += ["lzw", "zstd"]
    except ImportError:
        pass
    rng = np.random.default_rng(0)
    for number in range(150):
        kind, channels = rng.choice(TYPES), int(rng.choice([1, 2, 4, 5, 8, 13]))
        height, width = rng.integers(3, 50, 2).tolist()
        levels = (rng.random((height, width, channels)) * 250).astype(kind)
        codec = codecs[number % len(codecs)]
        settings: dict[str, Any] = {"compression": codec, "byteorder": "<>"[number % 2], "bigtiff": number % 5 == 0}
        settings["planarconfig"] = "separate" if rng.random() < 0.5 else "contig"
        settings |= {"tile": (16, 32)} if rng.random() < 0.5 else {"rowsperstrip": int(rng.integers(1, 20))}
        if codec in ("zlib", "lzw") and kind in ("u1", "u2") and rng.random() < 0.5:
            settings["predictor"] = True
        found = decode(tiff(levels, **settings), channels)
        np.testing.assert_array_equal(found, levels.astype(np.float32), str(settings))


def test_pages_are_channels_without_overviews_and_masks() -> None:
    rng = np.random.default_rng(1)
    images = [rng.integers(0, 65536, (20, 24), np.uint16) for _ in range(5)]
    np.testing.assert_array_equal(decode(pages(*images), 5, 16), np.stack(images, 2))
    two = [rng.integers(0, 256, (20, 24, 2), np.uint8) for _ in range(2)]
    np.testing.assert_array_equal(decode(pages(*two), 4, 8), np.concatenate(two, 2))
    others = {"subfiletype": 1}, {"subfiletype": 4, "photometric": "mask"}
    data = pages(two[0], two[0][::2, ::2], two[0][:, :, 0] > 9, of_page=({}, *others))
    np.testing.assert_array_equal(decode(data, 2, 8), two[0])


def test_pages_must_fit_together() -> None:
    small = np.zeros((20, 24), np.uint8)
    assert "pages of uint8 [20, 24, 1] and of uint8 [19, 24, 1]" in refuse(pages(small, small[1:]), 2).cause
    assert "and of uint16" in refuse(pages(small, small.astype(np.uint16)), 2).cause
    assert "has 2 channels, but the pipeline has channels=4" in refuse(pages(small, small), 4).cause
    assert "more than 64 pages" in refuse(pages(*[small] * 65), 64).cause
    assert refuse(tiff(np.zeros((4, 4, 2), np.complex64)), 2).code == "E-UNSUPPORTED"


@pytest.mark.parametrize("kind", ["u1", "u2"])
@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("layout", ["contig", "separate", "pages"])
def test_bands_are_not_taken_for_a_colour(layout: str, compression: str | None, kind: str) -> None:
    """A pipeline of three channels serves three bands as they are, and refuses other numbers; so do targets, masks."""
    for channels in (2, 3, 4, 5):
        levels = np.random.default_rng(channels).integers(0, 256, (20, 24, channels)).astype(kind)
        if layout == "pages":
            data = pages(*levels.transpose(2, 0, 1), compression=compression)
        else:
            data = tiff(levels, planarconfig=layout, compression=compression)
        depth = 8 * levels.itemsize
        if channels == 3:
            np.testing.assert_array_equal(decode(data, 3, depth), levels)
        else:
            assert f"has {channels} channels, but the pipeline has channels=3" in refuse(data, 3, depth).cause
        rules = TargetRules(channels=channels, scale=1, interpolation="nearest", fill=(0.0,) * channels)
        target = FieldKind(kind="image", dtype=levels.dtype.name, target=rules)
        for of_kind in (None, target):
            found = TargetDecoder(of_kind, ImagePipeline()).open(data).crop((0, 0, 24, 20))
            np.testing.assert_array_equal(found, levels)
        with pytest.raises(LoaderError, match=r"mask (must have one channel|cannot be decoded)"):
            decode_mask(data)


def test_planes_of_16_bits_keep_their_bits() -> None:
    levels = np.random.default_rng(5).integers(0, 65536, (20, 24, 3), np.uint16)
    for compression in (None, "zlib"):
        data = tiff(levels, photometric="rgb", planarconfig="separate", compression=compression)
        np.testing.assert_array_equal(decode(data, 3, 16), levels)


def test_a_colour_with_a_preview_is_a_colour() -> None:
    """Other pages than grey ones of one size are not channels: the first page is the image, as in other formats."""
    levels = np.random.default_rng(6).integers(0, 256, (20, 24, 3), np.uint8)
    data = pages(levels, levels[::2, ::2], levels, photometric="rgb")
    np.testing.assert_array_equal(decode(data, 3, 8), levels)


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 10, 12, 14, 16])
def test_levels_are_served_as_colours_or_refused(bits: int) -> None:
    """Levels of colours are scaled to 8 bits, and inverted if they count from white; others need depth=32."""
    levels, highest = np.random.default_rng(bits).integers(0, 2**bits, (20, 24)), 2**bits - 1
    for photometric, shown in ((1, levels), (0, highest - levels)):
        data = grey_tiff(levels, bits, photometric)
        if bits > 8 and (bits, photometric) != (16, 1):
            for depth in (8, 16):
                with pytest.raises(LoaderError, match="or serve its levels with depth=32") as caught:
                    ImageDecoder(ImagePipeline(depth=depth)).full(data)
                assert caught.value.code == "E-UNSUPPORTED"
                assert ("count from white" in caught.value.cause) == (bits == 16)
            picture = TargetDecoder(None, ImagePipeline()).open(data)
            assert np.array_equal(picture.crop((0, 0, 24, 20))[..., 0], levels)
        else:
            found = ImageDecoder(ImagePipeline(depth=16 if bits == 16 else 8)).full(data)
            assert np.array_equal(found[..., 2], shown if bits == 16 else shown * 255 // highest)
        if bits > 1:
            assert np.array_equal(decode(data, 1)[..., 0], levels)


@pytest.mark.parametrize("kind", ["i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"])
def test_targets_and_masks_have_the_levels_of_the_file(kind: str) -> None:
    """In each byte order and compression, or they are refused."""
    pytest.importorskip("imagecodecs")
    rng, served = np.random.default_rng(7), 0
    limits = (-1e4, 1e4) if kind[0] == "f" else (np.iinfo(kind).min, float(np.iinfo(kind).max))
    for byteorder, (compression, predictor), tile in itertools.product(
        "<>", [(None, None), ("deflate", None), ("deflate", True), ("lzw", True), ("packbits", None)], (None, (16, 16))
    ):
        levels = rng.uniform(*limits, (20, 24, 1)).astype(kind)
        if predictor and kind in ("u8", "i8"):
            continue
        data = tiff(levels, byteorder=byteorder, compression=compression, predictor=predictor, tile=tile)
        rules = TargetRules(channels=1, scale=1, interpolation="nearest", fill=(0.0,))
        target = FieldKind(kind="image", dtype="uint16" if kind == "u2" else "float32", target=rules)
        found = TargetDecoder(target, ImagePipeline()).open(data).crop((0, 0, 24, 20))
        np.testing.assert_array_equal(found, levels.astype(found.dtype))
        with contextlib.suppress(LoaderError):
            np.testing.assert_array_equal(decode_mask(data), levels[..., 0])
            served += 1
    assert (served > 0) == (kind in ("i1", "u2", "i2", "u4", "i4"))


def test_the_orientation_is_applied_on_request_only() -> None:
    levels = np.random.default_rng(2).integers(0, 256, (10, 12, 4), np.uint8)
    data = tiff(levels, extratags=[(274, "H", 1, 6, True)])
    np.testing.assert_array_equal(decode(data, 4, 8), levels)
    np.testing.assert_array_equal(decode(data, 4, 8, exif="apply"), np.rot90(levels, -1))


def test_a_declared_size_is_checked_before_decoding() -> None:
    data = tiff(np.zeros((16, 16, 4), np.uint8))
    for tag in (256, 257):
        entry = np.array([tag], "<u2").tobytes()
        at = data.index(entry, 8) + 8
        assert refuse(data[:at] + b"\xff\xff\xff\x7f" + data[at + 4 :], 4, 8).code in (
            "E-BOMB",
            "E-CORRUPT",
            "E-UNSUPPORTED",
        )


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_damaged_files_are_bad_samples(compression: str | None) -> None:
    levels = np.random.default_rng(3).integers(0, 50, (16, 16, 5), np.uint16)
    data = tiff(levels, compression=compression, rowsperstrip=4)
    pixels = min(page.dataoffsets[0] for page in tifffile.TiffFile(io.BytesIO(data)).pages)
    rng, codes = np.random.default_rng(4), set[str]()
    for cut in range(1, len(data), 7):
        assert refuse(data[:cut], 5, 16).code in ("E-TRUNC", "E-CORRUPT", "E-FORMAT"), cut
    for _ in range(300):
        damaged = bytearray(data)
        damaged[rng.integers(4, pixels)] = rng.integers(256)
        try:
            decode(bytes(damaged), 5, 16)
        except LoaderError as error:
            codes.add(error.code)
    assert codes <= {"E-TRUNC", "E-CORRUPT", "E-FORMAT", "E-UNSUPPORTED", "E-BOMB"}
