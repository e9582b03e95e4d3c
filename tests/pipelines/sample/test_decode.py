"""The decode contract: the same verdict and pixels from every decoder, for every part of an image."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
import threading
import tracemalloc
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jpeg_parts as jp
import numpy as np
import pytest
from jpeg_samples import stoppable, unstoppable
from odd_images import ANY, OddImage, corpus, encoded, exif_segment, jpeg, orient, png, scene, textured
from PIL import Image, ImageFile

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.sample import decode_turbojpeg
from penstock.pipelines.sample.decode import DECODER_NAMES, ImageDecoder
from penstock.pipelines.spec import ImagePipeline

DECODERS = ("simplejpeg", "turbojpeg", "pillow")
SETTINGS = [(name, exif) for name in DECODERS for exif in ("ignore", "apply")]
Outcome = np.ndarray | str


def decoder(name: str, exif: str = "ignore", **settings: object) -> ImageDecoder:
    return ImageDecoder(ImagePipeline(exif=exif, **settings), name)


def outcome(call: Callable[[], np.ndarray]) -> Outcome:
    """Return the pixels, or the code of the refusal; other exceptions propagate."""
    try:
        return call().copy()
    except LoaderError as error:
        return error.code


def ways(images: ImageDecoder, data: bytes) -> dict[str, Outcome]:
    """Return the image decoded in every way: whole, and by windows with its first row, its top and its middle."""

    def window(part: str) -> np.ndarray:
        probe = images.probe(data)
        w, h = probe.width, probe.height
        windows = {
            "all": (0, 0, w, h),
            "first row": (0, 0, w, 1),
            "top": (0, 0, max(1, w // 2), max(1, h // 3)),
            "middle": (w // 3, h // 3, max(1, w // 3), max(1, h // 3)),
        }
        return images.window(data, probe, windows[part])

    parts = ("all", "first row", "top", "middle")
    return {"full": outcome(lambda: images.full(data))} | {
        part: outcome(lambda part=part: window(part)) for part in parts
    }


def verdicts(found: dict[str, Outcome]) -> set[str | None]:
    return {way if isinstance(way, str) else None for way in found.values()}


# ---- the corpus


@pytest.mark.parametrize("odd", corpus(), ids=lambda odd: odd.name)
def test_decoders_agree_on_the_corpus(odd: OddImage) -> None:
    has_orientation = odd.oriented_reference is not None
    settings = [(name, exif) for name, exif in SETTINGS if has_orientation or exif == "ignore" or name == "simplejpeg"]
    found = {setting: ways(decoder(*setting), odd.data) for setting in settings}
    codes = {code for each in found.values() for code in verdicts(each)}
    assert codes == {odd.code} if odd.code != ANY else codes in ({None}, {"E-UNSUPPORTED"})
    if codes != {None}:
        return
    for (name, exif), pixels in found.items():
        reference = odd.oriented_reference if exif == "apply" and has_orientation else odd.reference
        assert reference is not None
        height, width = reference.shape[:2]
        whole = pixels["full"]
        assert isinstance(whole, np.ndarray)
        assert (whole.dtype, whole.shape) == (np.uint8, reference.shape)
        assert np.abs(whole.astype(float) - reference).mean() <= odd.tolerance
        assert np.array_equal(whole, found["simplejpeg", exif]["full"]), name
        assert np.array_equal(whole, pixels["all"])
        assert np.array_equal(whole[:1], pixels["first row"])
        assert np.array_equal(whole[: max(1, height // 3), : max(1, width // 2)], pixels["top"])
        y, x = height // 3, width // 3
        assert np.array_equal(whole[y : y + max(1, height // 3), x : x + max(1, width // 3)], pixels["middle"])


# ---- headers that one of the decoders rejects


@cache
def odd_headers() -> dict[str, tuple[bytes, str | None]]:
    """Return headers on which libjpeg, TurboJPEG and Pillow disagree."""
    whole = jpeg(scene(45, 70), subsampling=2)
    bare = jp.remove_segments(whole, jp.APP0)

    def app(marker: int, payload: bytes, data: bytes = bare) -> bytes:
        return jp.insert(data, jp.segment(marker, payload))

    jfif, adobe = b"JFIF\0\1\1\0\0\1\0\1\0\0", b"Adobe\0\x64\0\0\0\0"
    files: dict[str, tuple[bytes, str | None]] = {}
    files |= {f"JFIF of {n} bytes": (app(jp.APP0, jfif[:n]), None) for n in range(4, 15)}
    files |= {f"JFIF {v}.0": (app(jp.APP0, b"JFIF\0" + bytes([v]) + jfif[6:]), None) for v in (0, 2, 3, 255)}
    files |= {f"Adobe of {n} bytes": (app(jp.APP14, (adobe + b"\1")[:n]), None) for n in range(4, 13)}
    files |= {f"Adobe transform {t}": (app(jp.APP14, adobe + bytes([t])), None) for t in (0, 1, 2, 3, 9, 255)}
    files |= {f"JFIF and Adobe {t}": (app(jp.APP14, adobe + bytes([t]), whole), None) for t in (0, 1, 2, 9)}
    files["ICC number 3 of 7"] = app(jp.APP2, b"ICC_PROFILE\0\3\7" + bytes(40)), None
    files["16-bit table"] = app(jp.DQT, b"\x10" + b"\0\x14" * 64), None
    files["restart interval never used"] = app(jp.DRI, b"\0\4"), None
    files |= {f"bare marker {m:02x}": (jp.insert(whole, bytes([255, m])), None) for m in (0x01, 0xD0, 0xD7)}
    files |= {f"bare marker {m:02x}": (jp.insert(whole, bytes([255, m])), "E-CORRUPT") for m in (0x00, 0xD8, 0xD9)}
    broken = (0x02, 0x3A, 0xBF, 0xC3, 0xC5, 0xC8, 0xCC, 0xD8, 0xDE, 0xDF, 0xF0, 0xF7, 0xFD)
    files |= {f"segment {m:02x}": (app(m, b"hello world!"), "E-CORRUPT") for m in broken}
    files["table too short"] = app(jp.DQT, b"\0" + bytes(40)), "E-CORRUPT"
    files["table number 7"] = app(jp.DQT, b"\7" + bytes(64)), "E-CORRUPT"
    files["no tables"] = jp.remove_segments(whole, jp.DQT), "E-CORRUPT"
    files["progressive in name"] = jp.with_frame(whole, marker=jp.SOF2), "E-CORRUPT"
    files["baseline in name"] = jp.with_frame(jpeg(scene(45, 70), progressive=True), marker=jp.SOF0), "E-CORRUPT"
    files["two starts"] = jp.SOI + whole, "E-CORRUPT"
    files["huffman table after the scan"] = whole[:-2] + jp.segment(jp.DHT, bytes(17)) + jp.EOI, None
    files["broken table after the scan"] = whole[:-2] + jp.segment(jp.DHT, b"\0" + b"\xff" * 16) + jp.EOI, "E-CORRUPT"
    return files


@pytest.mark.parametrize("name", odd_headers())
def test_odd_headers_get_one_verdict(name: str) -> None:
    data, code = odd_headers()[name]
    found = {which: ways(decoder(which), data) for which in DECODERS}
    assert {which: verdicts(found[which]) for which in DECODERS} == {which: {code} for which in DECODERS}
    if code is None:
        assert all(
            np.array_equal(found[which][way], found["pillow"][way]) for which in DECODERS for way in found[which]
        )


# ---- no pixels of a previous image


def warned_then_broken() -> dict[str, bytes]:
    """Return files for which libjpeg first warns and then fails: TurboJPEG reports these errors as warnings."""
    rgb = textured(64, 64)
    whole = jpeg(rgb, progressive=True)
    scans = [i for i in range(len(whole) - 1) if whole[i : i + 2] == b"\xff\xda"]
    table = next(i for i in range(scans[0], len(whole)) if whole[i : i + 2] == b"\xff\xc4")
    files = {}
    for name, damage in {"zeros": bytes(26), "ones": b"\xfe" * 26}.items():
        file = bytearray(whole)
        file[scans[0] + 14 : scans[0] + 40] = damage
        file[table + 5 : table + 21] = b"\xff" * 16  # more codes than fit in a Huffman table
        files[f"progressive, {name}"] = bytes(file)
    plain = jpeg(rgb)
    files["baseline"] = plain[:-300] + jp.segment(jp.DHT, b"\0" + b"\xff" * 16) + jp.EOI
    return files


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("kind", warned_then_broken())
def test_an_error_after_a_warning_is_an_error(kind: str, name: str) -> None:
    data = warned_then_broken()[kind]
    images = decoder(name)
    previous = images.full(jpeg(255 - textured(64, 64)))
    assert previous.shape == (64, 64, 3)
    assert verdicts(ways(images, data)) == {"E-CORRUPT"}


# ---- orientation of formats other than JPEG


@pytest.mark.parametrize("fmt", ["PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_other_formats_have_an_orientation_too(fmt: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = textured(21, 34)
    data = encoded(stored, fmt, exif=exif, **({"lossless": True} if fmt == "WEBP" else {}))
    images, turned = decoder("auto", "apply"), orient(stored, orientation)
    assert np.array_equal(decoder("auto").full(data), stored)
    assert np.array_equal(images.full(data), turned)
    assert np.array_equal(images.window(data, images.probe(data), (3, 2, 7, 11)), turned[2:13, 3:10])


# ---- sizes


@pytest.mark.parametrize("name", DECODERS)
def test_max_pixels_is_exact(name: str) -> None:
    for data in (stoppable()["444_83x61"], encoded(scene(61, 83), "PNG")):
        assert decoder(name, max_pixels=61 * 83).full(data).shape == (61, 83, 3)
        with pytest.raises(LoaderError, match=r"83x61 .*max_pixels is 5062") as caught:
            decoder(name, max_pixels=61 * 83 - 1).probe(data)
        assert caught.value.code == "E-BOMB"


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("limit", [1, 50])
def test_pillows_limit_is_ignored(name: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)  # above it Pillow warns, above twice the limit it raises
    for data in (stoppable()["444_83x61"], encoded(scene(61, 83), "PNG"), encoded(scene(9, 9), "BMP")):
        assert decoder(name).full(data).size > 0
    assert limit == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("name", DECODERS)
def test_load_truncated_images_of_pillow_is_ignored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    for odd in corpus():
        if odd.code in ("E-TRUNC", "E-EOI", "E-CORRUPT"):
            assert verdicts(ways(decoder(name), odd.data)) == {odd.code}, odd.name
    for kind, data in warned_then_broken().items():
        assert verdicts(ways(decoder(name), data)) == {"E-CORRUPT"}, kind
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


def test_warnings_of_other_threads_are_not_lost_while_pillow_decodes(
    recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, warned, open_image = threading.Event(), threading.Event(), Image.open

    def open_slowly(*given: Any, **settings: Any) -> Image.Image:
        begun.set()
        assert warned.wait(10)
        return open_image(*given, **settings)

    monkeypatch.setattr(Image, "open", open_slowly)
    thread = threading.Thread(target=decoder("pillow").full, args=(encoded(scene(9, 9), "PNG"),))
    thread.start()
    assert begun.wait(10)
    warnings.warn("of the program", UserWarning, stacklevel=1)
    warned.set()
    thread.join()
    assert [str(each.message) for each in recwarn] == ["of the program"]


@pytest.mark.parametrize("name", DECODERS)
def test_bombs_are_refused_before_memory_is_allocated(name: str) -> None:
    images, bombs = decoder(name, "apply"), [odd for odd in corpus() if odd.code == "E-BOMB"]
    assert len(bombs) >= 11
    tracemalloc.start()
    try:
        assert {outcome(lambda bomb=bomb: images.probe(bomb.data)) for bomb in bombs} == {"E-BOMB"}  # before decoding
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def rss_kib() -> int:
    ctypes.CDLL(None).malloc_trim(0)  # free memory would hide a leak
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize() // 1024


@pytest.mark.parametrize("name", DECODERS)
def test_memory_does_not_grow_with_images_or_errors(name: str) -> None:
    good = [stoppable()["420_83x61"], stoppable()["grey_83x61"], unstoppable()["progressive_444"], png_file()]
    bad = [
        *(data[: len(data) // 2] for data in good),
        *warned_then_broken().values(),
        jp.insert(good[0], b"\xff\x3a\0\4ab"),
        good[0][:-400] + b"\xff\x3a" + good[0][-400:],
    ]
    images = decoder(name, "apply")
    sizes = []
    for i in range(1000):
        pool = bad if i % 3 else good
        data = pool[i % len(pool)]
        assert isinstance(outcome(lambda d=data: images.full(d)), str) == (pool is bad)
        if i in (299, 999):
            gc.collect()
            sizes.append(rss_kib())
    assert sizes[1] - sizes[0] < 512


def png_file() -> bytes:
    return png(textured(30, 40), depth=8, colour=2)


# ---- choice of a decoder


def test_auto_chooses_the_fastest_and_gives_the_reason() -> None:
    images = decoder("auto")
    assert images.name == "simplejpeg"
    assert "fastest" in images.reason
    assert decoder("pillow").reason == "chosen by name"
    assert list(DECODER_NAMES) == ["auto", "native", *DECODERS]


def test_missing_decoder_is_one_error_and_auto_skips_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = []
    for module, name in (("simplejpeg", "simplejpeg"), ("turbojpeg", "turbojpeg"), ("PIL", "pillow")):
        monkeypatch.setitem(sys.modules, module, None)
        monkeypatch.delitem(sys.modules, f"penstock.pipelines.sample.decode_{name}", raising=False)
        with pytest.raises(LoaderError, match=r"E-DEPENDENCY.* fix=.*install"):
            decoder(name)
        if name != "pillow":
            reasons.append(f"{decoder('auto').name} {decoder('auto').reason}")
    assert reasons[0].startswith("turbojpeg the first that works (simplejpeg: simplejpeg cannot be imported")
    assert reasons[1].startswith("pillow the first that works (simplejpeg: ")
    with pytest.raises(LoaderError, match=r"E-DEPENDENCY\] cause=no JPEG decoder works: simplejpeg: "):
        decoder("auto")


def test_an_unknown_decoder_is_reported_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"must be one of auto, native, simplejpeg, turbojpeg, pillow, got .cv2."):
        decoder("cv2")


# ---- probes


@pytest.mark.parametrize("name", DECODERS)
def test_a_size_of_zero_is_an_error(name: str) -> None:
    whole = encoded(scene(7, 9), "PNG")
    with pytest.raises(LoaderError, match="9x0") as caught:
        decoder(name).probe(whole[:20] + bytes(4) + whole[24:])
    assert caught.value.code == "E-CORRUPT"


def test_the_text_of_refusals_is_the_same_each_time() -> None:
    """Memory addresses or counters in a cause would make two ledgers of one data set differ."""
    whole = bytearray(png_file())
    whole[29] ^= 1  # the CRC of the header: Pillow names the file object that it does not recognise
    for data in [odd.data for odd in corpus() if odd.code not in (None, ANY)] + [bytes(whole)]:
        causes = set()
        for _ in range(2):
            with pytest.raises(LoaderError) as caught:
                decoder("pillow").full(bytes(bytearray(data)))
            causes.add(caught.value.cause)
        assert len(causes) == 1
        assert " at 0x" not in causes.pop()


# ---- images whose EXIF orientation is known, as in a cache ----


@pytest.mark.parametrize("exif", range(1, 9))
def test_a_known_orientation_gives_the_same_as_the_files(exif: int) -> None:
    data = jpeg(textured(40, 56))
    told, images = data[:2] + exif_segment(exif) + data[2:], decoder("simplejpeg", "apply")
    whole = images.full(told).copy()
    assert images.probe(data, exif)[:2] == images.probe_pixels(textured(40, 56), exif)[:2] == whole.shape[1::-1]
    assert np.array_equal(images.full(data, images.probe(data, exif)), whole)


def test_a_known_orientation_counts_only_if_applied() -> None:
    pixels = textured(40, 56)
    assert decoder("simplejpeg", "ignore").probe_pixels(pixels, 6)[:4] == (56, 40, "", 1)
    assert decoder("simplejpeg", "apply").probe_pixels(pixels, 6)[:4] == (40, 56, "", 6)
    with pytest.raises(LoaderError, match=r"E-BOMB.*56x40"):
        decoder("simplejpeg", max_pixels=56 * 40 - 1).probe_pixels(pixels, 1)


def test_old_pyturbojpeg_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 1.8.0 every photo raised a TypeError."""
    monkeypatch.setattr(decode_turbojpeg._QuietTurboJPEG, "decode", lambda self, jpeg_buf, flags=0: None)
    with pytest.raises(LoaderError, match=r"E-DEPENDENCY.*1\.8\.2 or newer"):
        decode_turbojpeg.TurbojpegDecoder()
