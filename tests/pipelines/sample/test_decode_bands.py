"""Images with their channels and levels as stored: .npy, stacks, formats with alpha, compared with numpy and Pillow."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
from band_images import decode, npy, refuse
from odd_images import encoded, png
from PIL import Image

from penstock.loaders.cache_build.encode import SampleEncoder
from penstock.loaders.data.cache.format import Encoding
from penstock.pipelines import ImagePipeline
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.fields.field_kinds import FieldKind, TargetRules
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.sample.decode_bands import pack_array, pack_stack
from penstock.pipelines.sample.target_decoder import TargetDecoder

TYPES = ("u1", "<u2", ">u2", "<i2", ">i4", "<f2", ">f4", "<f8")


def levels_of(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    return (rng.random(shape) * 250).astype(kind)


def test_arrays_are_read_in_any_order_type_and_layout() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        kind, channels = rng.choice(TYPES), int(rng.integers(1, 65))
        height, width = rng.integers(1, 12, 2).tolist()
        image = levels_of(rng, kind, (height, width, channels))
        first = rng.random() < 0.5 and width != channels
        stored = image.transpose(2, 0, 1) if first else image
        stored = image[:, :, 0] if channels == 1 and rng.random() < 0.5 else stored
        stored = np.asfortranarray(stored) if rng.random() < 0.3 else np.ascontiguousarray(stored)
        found = decode(npy(stored, (1, 0) if rng.random() < 0.7 else (2, 0)), channels)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, image.astype(np.float32))
    deep = levels_of(rng, "<u2", (5, 6, 7))
    assert decode(npy(deep), 7, 16).dtype == np.uint16
    assert decode(npy(deep.astype(np.uint8)), 7, 16).dtype == np.uint8  # a sample gets 257 times these levels
    assert decode(pack_array(deep), 7, 16).tolist() == deep.tolist()


@pytest.mark.parametrize(
    ("levels", "channels", "depth", "code", "words"),
    [
        (np.zeros((4, 5, 6), "u1"), 5, 8, "E-UNSUPPORTED", "has 6 channels, but the pipeline has channels=5"),
        (np.zeros((4, 5, 6), "<u2"), 6, 8, "E-UNSUPPORTED", "type uint16, but the pipeline has depth=8"),
        (np.zeros((4, 5, 6), "<i2"), 6, 16, "E-UNSUPPORTED", "type int16, but the pipeline has depth=16"),
        (np.zeros((4, 5, 6), "<f4"), 6, 16, "E-UNSUPPORTED", "type float32"),
        (np.zeros((4, 5, 6), bool), 6, 8, "E-UNSUPPORTED", "levels of type bool"),
        (np.zeros((4, 5, 6), "c8"), 6, 32, "E-UNSUPPORTED", "levels of type complex64"),
        (np.zeros((2, 4, 5, 6), "u1"), 6, 8, "E-UNSUPPORTED", "has the shape [2, 4, 5, 6]"),
        (np.zeros((0, 5, 6), "u1"), 6, 8, "E-UNSUPPORTED", "has the shape [0, 5, 6]"),
    ],
)
def test_other_arrays_are_bad_samples(levels: np.ndarray, channels: int, depth: int, code: str, words: str) -> None:
    error = refuse(npy(levels), channels, depth)
    assert error.code == code
    assert words in error.cause
    assert error.of_sample


def test_arrays_of_objects_are_refused_without_reading_them() -> None:
    assert refuse(npy(np.array([[{"a": 1}]])), 1).code == "E-UNSUPPORTED"


def test_arrays_and_stacks_cut_anywhere_are_refused() -> None:
    array = npy(np.ones((3, 4, 2), "<u2"))
    for data, channels in ((array, 2), (pack_stack([array, array]), 4)):
        decode(data, channels)
        for cut in range(1, len(data)):
            assert refuse(data[:cut], channels).code in ("E-TRUNC", "E-CORRUPT", "E-FORMAT")


def test_a_stack_has_the_channels_of_all_its_files_in_order() -> None:
    rng = np.random.default_rng(1)
    parts = [levels_of(rng, "u1", (6, 7, count)) for count in (1, 1, 3, 2)]
    files = [npy(parts[0]), png(parts[1], depth=8, colour=0), png(parts[2], depth=8, colour=2), npy(parts[3])]
    files[3] = png(parts[3], depth=8, colour=4)
    np.testing.assert_array_equal(decode(pack_stack(files), 7, 8), np.concatenate(parts, 2))
    colours = pack_stack(files[:2] + files[:1])  # also for pipelines that convert grey and colour
    np.testing.assert_array_equal(
        ImageDecoder(ImagePipeline()).full(colours), np.concatenate((parts[0], parts[1], parts[0]), 2)
    )
    np.testing.assert_array_equal(ImageDecoder(ImagePipeline()).full(files[0]), np.repeat(parts[0], 3, 2))


def test_files_of_a_stack_must_fit_together() -> None:
    small, large, deep = (
        npy(np.zeros(shape, kind)) for shape, kind in (((4, 5), "u1"), ((5, 5), "u1"), ((4, 5), "<u2"))
    )
    assert "different sizes: 5x4 and 5x5" in refuse(pack_stack([small, large]), 2).cause
    assert "several types: uint16, uint8" in refuse(pack_stack([small, deep]), 2).cause
    assert "contains a stack" in refuse(pack_stack([pack_stack([small])]), 1).cause
    assert refuse(pack_stack([small, small[:-1]]), 2).cause.startswith("file 2 of the stack: the .npy file declares")
    assert "2 channels, but the pipeline has channels=3" in refuse(pack_stack([small, small]), 3).cause
    many = pack_stack([small] * 65)
    assert "declares 65 files" in refuse(many, 64).cause


def test_files_of_a_stack_are_turned_alike_or_refused() -> None:
    levels = np.random.default_rng(1).integers(0, 256, (5, 7), np.uint8)
    tags = {orientation: Image.Exif() for orientation in (1, 3, 6)}
    for orientation, tag in tags.items():
        tag[274] = orientation
    files = {orientation: encoded(Image.fromarray(levels), "PNG", exif=tag) for orientation, tag in tags.items()}
    for first, second in itertools.product(files, repeat=2):
        stack = pack_stack([files[first], files[second]])
        cached = SampleEncoder(Encoding(kind="array")).encode(stack, 0).data
        rules = TargetRules(channels=2, scale=1, interpolation="nearest", fill=(0.0, 0.0))
        target = FieldKind(kind="image", target=rules)
        np.testing.assert_array_equal(decode(stack, 2, 8), np.stack((levels, levels), 2))
        for data in (stack, cached):
            if first == second:
                turned = np.rot90(levels, {1: 0, 3: 2, 6: -1}[first])
                np.testing.assert_array_equal(decode(data, 2, 8, exif="apply")[..., 1], turned)
                picture = TargetDecoder(target, ImagePipeline(exif="apply")).open(data)
                np.testing.assert_array_equal(picture.crop((0, 0, 7, 7))[..., 1], turned)
                continue
            with pytest.raises(LoaderError, match="different EXIF orientations"):
                decode(data, 2, 8, exif="apply")
            with pytest.raises(LoaderError, match="different EXIF orientations"):
                TargetDecoder(target, ImagePipeline(exif="apply")).open(data)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_alpha_is_a_channel_on_request_only(mode: str, kind: str) -> None:
    pixels = np.random.default_rng(2).integers(1, 256, (9, 8, len(mode)), np.uint8)
    mode = mode if kind == "PNG" else mode.replace("LA", "RGBA") if len(mode) == 2 else mode.replace("L", "RGB")
    pixels = pixels if pixels.shape[2] == len(mode) else np.repeat(pixels, 4, 2)[:, :, : len(mode)]
    data = encoded(Image.fromarray(pixels.squeeze(), mode), kind, **({"lossless": True} if kind == "WEBP" else {}))
    np.testing.assert_array_equal(decode(data, len(mode)), pixels)
    colour = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(ImageDecoder(ImagePipeline()).full(data), colour)  # as before


def test_sixteen_bits_of_alpha_are_kept() -> None:
    pixels = np.random.default_rng(3).integers(0, 65536, (9, 8, 4), np.uint16)
    for colour, channels in ((0, [0]), (4, [0, 1]), (2, [0, 1, 2]), (6, [0, 1, 2, 3])):
        levels = pixels[:, :, channels]
        found = decode(png(levels, depth=16, colour=colour), len(channels))
        np.testing.assert_array_equal(found, levels.astype(np.float32))
        if len(channels) in (2, 4):
            np.testing.assert_array_equal(decode(png(levels, depth=16, colour=colour), len(channels), 16), levels)
            assert "depth=16" in refuse(png(levels, depth=16, colour=colour), len(channels), 8).fix


def test_other_formats_have_the_channels_of_their_colours() -> None:
    pixels = np.random.default_rng(4).integers(0, 256, (20, 24, 3), np.uint8)
    colour, grey = Image.fromarray(pixels), Image.fromarray(pixels[:, :, 0])
    for kind in ("JPEG", "BMP", "GIF", "PNG"):
        expected = np.asarray(Image.open(io.BytesIO(encoded(colour, kind))).convert("RGB"))
        np.testing.assert_array_equal(decode(encoded(colour, kind), 3), expected)
        if kind != "GIF":
            expected = np.asarray(Image.open(io.BytesIO(encoded(grey, kind))).convert("L"))
            np.testing.assert_array_equal(decode(encoded(grey, kind), 1)[:, :, 0], expected)
        assert "has 3 channels" in refuse(encoded(colour, kind), 5).cause
    palette = encoded(colour.quantize(16), "PNG")
    assert decode(palette, 3).shape == (20, 24, 3)


def test_the_limit_counts_pixels_of_the_pipeline() -> None:
    data = npy(np.zeros((10, 10, 13), "<u2"))
    assert decode(data, 13, 16, max_pixels=100).shape == (10, 10, 13)
    for channels, limit in ((13, 99), (4, 100)):
        with pytest.raises(LoaderError, match=r"E-BOMB|13 channels"):
            decode(data, channels, 16, max_pixels=limit)
    small = npy(np.zeros((1, 1, 13), "<u2"))
    bomb = small.replace(b"(1, 1, 13), }" + b" " * 6, b"(1, 9999999, 13), }")
    assert refuse(bomb, 13, 16).code == "E-TRUNC"
    for number in range(200):  # numpy's parser raises errors of many types
        rng = np.random.default_rng(number)
        damaged = bytearray(small)
        damaged[rng.integers(8, 80)] = rng.integers(256)
        try:
            decode(bytes(damaged), 13, 16)
        except LoaderError:
            continue
