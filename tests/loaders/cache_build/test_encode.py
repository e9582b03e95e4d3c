"""What a cache stores of an image: the source's pixels, and the reason where the file is stored unchanged."""

from __future__ import annotations

import contextlib
import ctypes
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

import jpeg_parts as jp
import native_tests
import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
import torch
from band_images import grey_tiff
from jpeg_samples import stoppable, unstoppable
from odd_images import OddImage, corpus, encoded, exif_segment, jpeg, scene, textured
from PIL import Image
from stored_images import decode, head_of, stored_jpeg, stored_pixels
from torch.nn import functional

from penstock.loaders.cache_build import encode as cache_encode
from penstock.loaders.cache_build.encode import SampleEncoder, Stored, shrink, shrink_size
from penstock.loaders.data.cache.format import FILE, PIXELS, RECORD, STRIPS, Encoding, crc32
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.jpeg.header import parse_header
from penstock.pipelines.jpeg.strips import restart_interval, segment_ends, segment_length
from penstock.pipelines.native.recode import NativeRecoder, Recoded
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.spec import ImagePipeline

PHOTO = simplejpeg.encode_jpeg(textured(120, 200), 90, "RGB", "420")
LOSSLESS, RAW, SMALL = Encoding(), Encoding(kind="raw"), Encoding(resize=48, quality=85)


@lru_cache(maxsize=1)
def lossless_corpus() -> list[tuple[OddImage, Stored]]:
    encoder = SampleEncoder(LOSSLESS)
    return [(odd, encoder.encode(odd.data, 7)) for odd in corpus()]


def check_record(stored: Stored, data: bytes) -> None:
    """Check what holds for the record of any image."""
    record = stored.record
    assert record.dtype == RECORD
    assert (record["offset"], record["label"], record["length"]) == (0, 7, len(stored.data))
    assert 1 <= record["orientation"] <= 8
    if record["kind"] == FILE:
        assert stored.data == data
        assert (record["head"], record["crc"]) == (0, crc32(data, 0))
    else:
        assert record["crc"] == crc32(stored.data[: record["head"]], 0)


# ---- lossless, JPEG


def test_odd_images_keep_their_pixels_or_bytes() -> None:
    """Without a crash: refused images are stored unchanged; re-coded ones keep their pixels, the rest their bytes."""
    reader = ImageDecoder(ImagePipeline())
    kinds: Counter[int] = Counter()
    for odd, stored in lossless_corpus():
        check_record(stored, odd.data)
        kinds[int(stored.record["kind"])] += 1
        if odd.code not in (None, "ANY"):
            assert (stored.record["kind"], stored.bad) == (FILE, odd.code), odd.name
        if odd.code is None:
            assert stored.bad == "", odd.name
            assert odd.reference is not None
            assert (stored.record["height"], stored.record["width"]) == odd.reference.shape[:2], odd.name
        if stored.record["kind"] == STRIPS:
            assert (stored_pixels(stored) == reader.full(odd.data)).all(), odd.name
        sized = stored.record["width"] > 0 and stored.record["height"] > 0
        assert sized if stored.bad == "" else not sized or stored.bad == "E-BOMB", odd.name
    assert kinds[STRIPS] > 55
    assert kinds[FILE] > 100


def test_reasons_in_the_odd_corpus() -> None:
    kept: dict[str, set[str]] = {}
    for odd, stored in lossless_corpus():
        if stored.kept:
            kept.setdefault(stored.kept, set()).add(odd.name)
    odd_factors = {"luma_below_chroma", "chromas_differ", "410", "thirds", "all_22"}
    cmyk = {"jpeg_cmyk_pillow", "jpeg_cmyk_adobe", "jpeg_cmyk_bare", "jpeg_ycck", "jpeg_ycck_420"}
    assert kept.pop("odd sampling") == {f"jpeg_factors_{name}" for name in odd_factors}
    assert kept.pop("CMYK") == cmyk
    assert kept.pop("arithmetic coding") == {"jpeg_arithmetic"}
    rare = {"non_interleaved", "non_interleaved_restart", "no_dht", "adobe_rgb", "rgb_ids"}
    rare |= {"fill_bytes", "tail_fill_before_eoi"}
    assert kept.pop("unsupported by the native library") == {f"jpeg_{name}" for name in rare}
    assert kept == {
        "libjpeg warned": {"jpeg_icc_part_of_many"},
        "larger with restart markers": {"jpeg_420_1x3000", "jpeg_444_1x3000"},
    }


def test_all_ordinary_kinds_become_strips() -> None:
    encoder = SampleEncoder(LOSSLESS)
    for name, data in (stoppable() | unstoppable()).items():
        stored = encoder.encode(data, 7)
        check_record(stored, data)
        if name == "scan_a_component":
            assert (stored.record["kind"], stored.kept) == (FILE, "unsupported by the native library")
            continue
        header = parse_header(stored_jpeg(stored))
        assert stored.record["kind"] == STRIPS, name
        assert header.stoppable, name
        assert restart_interval(stored_jpeg(stored), header) == stored.record["segment_mcus"], name
        assert stored.record["segment_mcus"] == segment_length(parse_header(data), 32), name
        assert (stored_pixels(stored) == simplejpeg.decode_jpeg(data, strict=True)).all(), name


def test_the_head_locates_each_strip() -> None:
    stored = SampleEncoder(LOSSLESS).encode(PHOTO, 7)
    table, header, scan = head_of(stored)
    record = stored.record
    assert (record["mcu_width"], record["mcu_height"], record["strip_rows"]) == (16, 16, 1)
    assert len(table) == 8
    assert table["end"][-1] == len(scan)
    before = begin = 0
    for number, (end, crc) in enumerate(table.tolist()):
        assert crc32(scan[begin:end], before) == crc
        if number < 7:
            assert scan[end - 2] == 0xFF
            assert 0xD0 <= scan[end - 1] <= 0xD7
        before, begin = crc, end
    size = header[record["height_offset"] :][:4]
    assert (int.from_bytes(size[:2], "big"), int.from_bytes(size[2:], "big")) == (120, 200)


def test_two_rows_of_low_mcus_form_one_strip() -> None:
    stored = SampleEncoder(LOSSLESS).encode(jpeg(textured(61, 83)[..., 0]), 7)
    assert (stored.record["mcu_height"], stored.record["strip_rows"], len(head_of(stored)[0])) == (8, 2, 4)


def test_segments_with_few_bytes_per_mcu_are_longer() -> None:
    lengths = {}
    for quality in (95, 40, 1):
        stored = SampleEncoder(LOSSLESS).encode(simplejpeg.encode_jpeg(textured(512, 512), quality, "RGB", "420"), 7)
        lengths[quality] = int(stored.record["segment_mcus"])
        segments = 32 * 32 // lengths[quality]
        assert len(head_of(stored)[2]) / segments > 50
    assert lengths[95] == 2 < lengths[40] < lengths[1] == 32


# ---- every check that a copy must pass


def kept(data: bytes = PHOTO) -> str:
    stored = SampleEncoder(LOSSLESS).encode(data, 7)
    check_record(stored, data)
    assert stored.record["kind"] == FILE
    assert (stored.bad, stored.record["width"], stored.record["height"]) == ("", 200, 120)
    return stored.kept


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """The native library, which makes the copies."""
    built = native_tests.native()
    monkeypatch.setattr(cache_encode, "native_library", lambda: built)
    return built


def recode_as(monkeypatch: pytest.MonkeyPatch, change: Callable[[Recoded, bytes, int], bytes]) -> None:
    """Replace each copy by `change`(copy, file, MCUs per restart interval)."""
    recode = NativeRecoder.recode

    def changed(self: NativeRecoder, data: bytes, segment_mcus: int, segments: int) -> Recoded:
        made = recode(self, data, segment_mcus, segments)
        assert made is not None
        copy = change(made, data, segment_mcus)
        scan = np.frombuffer(copy, np.uint8)[parse_header(made.data).scan_offset : -2]
        return Recoded(copy, np.append(segment_ends(scan), len(scan)))

    monkeypatch.setattr(NativeRecoder, "recode", changed)


@pytest.mark.parametrize(
    "change",
    [
        lambda ends: ends[:-1],
        lambda ends: ends + 1,
        lambda ends: np.append(ends, ends[-1]),
        lambda ends: np.append(ends[:-1] - 40, ends[-1]),
        lambda ends: np.concatenate((ends[:1], ends[:1], ends[2:])),
        lambda ends: np.concatenate((ends[:5], ends[5:6] - 1, ends[6:])),
    ],
)
def test_wrong_ends_of_segments_are_found(
    change: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lying(NativeRecoder):
        def recode(self, data: bytes, segment_mcus: int, segments: int) -> Recoded | None:
            copied = super().recode(data, segment_mcus, segments)
            assert copied is not None
            return copied._replace(segment_ends=change(copied.segment_ends))

    monkeypatch.setattr(cache_encode, "NativeRecoder", Lying)
    assert kept() == "the copy is not sound"


def test_without_the_library_files_are_stored_unchanged_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_encode, "native_library", lambda: None)
    for encoding, data, size in ((LOSSLESS, unstoppable()["progressive_420"], None), (SMALL, PHOTO, (48, 80))):
        stored = SampleEncoder(encoding).encode(data, 7)
        assert (stored.record["kind"], stored.kept) == (FILE, "the native library is missing")
        assert stored.data == data if size is None else decode(stored.data).shape == (*size, 3)


def test_one_changed_coefficient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One flipped bit of coded data, which may still decode without a warning."""
    found, place = Counter(), [0]

    def lie(made: Recoded, data: bytes, mcus: int) -> bytes:
        copy = bytearray(made.data)
        copy[place[0]] ^= 1
        return bytes(copy)

    recode_as(monkeypatch, lie)
    for place[0] in range(1000, 4000, 300):
        found[kept()] += 1
    assert set(found) <= {"pixels differ", "the copy is not sound"}
    assert found["pixels differ"] > 0


@pytest.mark.parametrize(
    "change",
    [
        lambda made, data, mcus: b"",
        lambda made, data, mcus: data,  # no restart markers
        lambda made, data, mcus: made.data.replace(b"\xff\xdd\0\4\0" + bytes([mcus]), b"\xff\xdd\0\4\0\7"),
        lambda made, data, mcus: made.data[:-2],
        lambda made, data, mcus: made.data + b"\0",
        lambda made, data, mcus: unstoppable()["progressive_420"],
        lambda made, data, mcus: stoppable()["420_83x61"],
        lambda made, data, mcus: b"\xff\xd8\xff",
    ],
)
def test_a_copy_that_is_another_file_is_found(
    change: Callable[[Recoded, bytes, int], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    recode_as(monkeypatch, change)
    assert kept() == "the copy is not sound"


def test_a_file_with_libjpeg_warnings_is_stored_unchanged() -> None:
    assert kept(PHOTO[:-40] + PHOTO[-10:]) == "libjpeg warned"


# ---- lossless, other formats


def test_the_orientation_and_the_stored_sides_are_recorded() -> None:
    encoder = SampleEncoder(LOSSLESS)
    for value in range(1, 9):
        stored = encoder.encode(jp.insert(PHOTO, exif_segment(value)), 7)
        record = stored.record
        assert (record["kind"], record["orientation"]) == (STRIPS, value)
        assert (record["width"], record["height"]) == (200, 120)
        assert (stored_pixels(stored) == simplejpeg.decode_jpeg(PHOTO)).all()
    assert encoder.encode(jp.insert(PHOTO, exif_segment(9)), 7).record["orientation"] == 1


def test_images_beyond_max_pixels_are_stored_with_their_size() -> None:
    bombs = {odd.name: stored for odd, stored in lossless_corpus() if odd.code == "E-BOMB"}
    assert len(bombs) > 5
    assert {stored.bad for stored in bombs.values()} == {"E-BOMB"}
    record = bombs["bomb_png"].record
    assert (record["kind"], record["width"], record["height"]) == (FILE, 20_000, 20_000)


def test_pixel_arrays_are_stored_as_pixels() -> None:
    image = textured(37, 50)
    image.flags.writeable = False
    for encoding in (LOSSLESS, RAW):
        stored = SampleEncoder(encoding).encode(image, 7)
        assert (stored.record["kind"], stored.record["strip_rows"]) == (PIXELS, 16)
        assert (stored_pixels(stored) == image).all()


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 12, 16])
def test_arrays_show_the_colours_of_their_files(bits: int) -> None:
    """An array cache keeps a file whose levels are other colours: few bits, levels that count from white, a palette."""
    pytest.importorskip("tifffile")
    levels = np.random.default_rng(bits).integers(0, 2**bits, (20, 24))
    files = [grey_tiff(levels, bits, photometric) for photometric in (0, 1)]
    if bits == 8:
        colour = Image.fromarray(levels.astype(np.uint8)).convert("RGB").rotate(9)
        lab = Image.frombytes("LAB", colour.size, colour.tobytes())
        files += [encoded(image, "TIFF") for image in (colour.quantize(9), colour.convert("YCbCr"), lab)]
    for data in files:
        stored = SampleEncoder(Encoding(kind="array")).encode(data, 0).data
        for depth in (8, 16):
            decoder = ImageDecoder(ImagePipeline(depth=depth))
            if outcome(decoder, stored) is not None:
                assert np.array_equal(outcome(decoder, data), outcome(decoder, stored))


def outcome(decoder: ImageDecoder, data: bytes) -> npt.NDArray[np.generic] | None:
    with contextlib.suppress(LoaderError):
        return decoder.full(data)
    return None


# ---- raw


@pytest.mark.parametrize("data", [PHOTO, encoded(scene(61, 83), "PNG"), unstoppable()["progressive_444"]])
def test_raw_is_the_decoded_image(data: bytes) -> None:
    stored = SampleEncoder(RAW).encode(data, 7)
    check_record(stored, data)
    assert stored.record["kind"] == PIXELS
    assert (stored_pixels(stored) == ImageDecoder(ImagePipeline()).full(data)).all()


@pytest.mark.parametrize("encoding", [RAW, SMALL])
def test_bad_images_are_stored_unchanged(encoding: Encoding) -> None:
    encoder = SampleEncoder(encoding)
    for odd in corpus():
        stored = encoder.encode(odd.data, 7)
        if odd.code not in (None, "ANY"):
            check_record(stored, odd.data)
            assert (stored.record["kind"], stored.bad) == (FILE, odd.code), odd.name
        elif odd.code is None:
            assert stored.bad == "", odd.name
            assert stored.record["kind"] == (FILE if stored.kept else PIXELS if encoding is RAW else STRIPS), odd.name
            assert stored.kept in ("", "larger with restart markers"), odd.name


# ---- lossy


@pytest.mark.parametrize("data", [PHOTO, encoded(textured(120, 200), "PNG"), textured(120, 200)])
def test_lossy_equals_resize_and_encode(data: bytes) -> None:
    """Only the documented steps: antialiased resize, then libjpeg at that quality with the accurate DCT."""
    stored = SampleEncoder(Encoding(resize=60, quality=80)).encode(data, 7)
    record = stored.record
    assert (record["kind"], record["width"], record["height"], stored.kept) == (STRIPS, 100, 60, "")
    assert parse_header(stored_jpeg(stored)).sampling == ((2, 2), (1, 1), (1, 1))
    raw = stored_pixels(SampleEncoder(Encoding(kind="raw", resize=60)).encode(data, 7))
    assert np.abs(raw - scene(120, 200).reshape(60, 2, 100, 2, 3).mean((1, 3))).mean() < 8
    expected = simplejpeg.decode_jpeg(simplejpeg.encode_jpeg(raw, 80, "RGB", "420", fastdct=False))
    assert (stored_pixels(stored) == expected).all()


def test_quality_alone_keeps_the_size() -> None:
    records = {q: SampleEncoder(Encoding(quality=q)).encode(PHOTO, 7).record for q in (30, 95)}
    assert {(r["width"], r["height"]) for r in records.values()} == {(200, 120)}
    assert records[30]["length"] < records[95]["length"]


@pytest.mark.parametrize("encoding", [SMALL, Encoding(kind="raw", resize=48)])
def test_the_orientation_of_resized_images(encoding: Encoding) -> None:
    stored = SampleEncoder(encoding).encode(jp.insert(PHOTO, exif_segment(6)), 7)
    assert (stored.record["orientation"], stored.record["width"], stored.record["height"]) == (6, 80, 48)


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (7, 9)])
@pytest.mark.parametrize("encoding", [SMALL, RAW, Encoding(resize=5, longer_side=True)])
def test_extreme_sizes(size: tuple[int, int], encoding: Encoding) -> None:
    pixels = np.ascontiguousarray(scene(max(size[0], 48), max(size[1], 48))[: size[0], : size[1]])
    stored = SampleEncoder(encoding).encode(pixels, 7)
    width, height = shrink_size(size[1], size[0], encoding)
    assert stored.kept == ("larger with restart markers" if encoding is SMALL and size == (3000, 1) else "")
    assert stored_pixels(stored).shape == (height, width, 3)


# ---- resize


@pytest.mark.parametrize(
    ("size", "settings", "expected"),
    [
        ((500, 375), {"resize": 256}, (341, 256)),
        ((375, 500), {"resize": 256}, (256, 341)),
        ((500, 375), {"resize": 400, "longer_side": True}, (400, 300)),
        ((500, 375), {"resize": 375}, (500, 375)),
        ((500, 375), {"resize": 376}, (500, 375)),
        ((500, 375), {"resize": 600, "longer_side": True}, (500, 375)),
        ((3000, 1), {"resize": 10, "longer_side": True}, (10, 1)),
        ((1, 3000), {"resize": 10}, (1, 3000)),
        ((500, 375), {"quality": 90}, (500, 375)),
    ],
)
def test_shrunk_size(size: tuple[int, int], settings: dict[str, int], expected: tuple[int, int]) -> None:
    assert shrink_size(*size, Encoding(**settings)) == expected


@pytest.mark.parametrize("size", [(120, 200), (200, 120), (49, 3000)])
def test_resized_pixels_equal_the_antialiased_kernel(size: tuple[int, int]) -> None:
    pixels = textured(*size)
    pixels.flags.writeable = False
    small = shrink(pixels, Encoding(resize=48))
    batch = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]
    expected = functional.interpolate(batch, small.shape[:2], mode="bilinear", antialias=True)
    assert (small == expected[0].permute(1, 2, 0).numpy()).all()
    assert small.flags.c_contiguous


def test_an_image_that_is_small_enough_is_unchanged() -> None:
    pixels = textured(60, 48)
    assert shrink(pixels, Encoding(resize=48)) is pixels
    assert np.array_equal(shrink(pixels[:, ::-1], Encoding(kind="raw")), pixels[:, ::-1])
