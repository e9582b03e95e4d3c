"""Every decoder reports the same repairs by libjpeg, for every crop, and reports nothing else."""

from __future__ import annotations

import random

import jpeg_parts as jp
import numpy as np
import pytest
from broken_scans import make_repairable
from image_fuzz import make_inputs
from jpeg_samples import stoppable, unstoppable
from odd_images import corpus, exif_segment
from repaired_jpegs import cut, lengthen_segment, remove_a_restart

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Window
from penstock.pipelines.jpeg.header import parse_header, reports_repair
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.spec import ImagePipeline

DECODERS = ("simplejpeg", "turbojpeg", "pillow")
SOUND = {**stoppable(), **unstoppable()}
WHOLE, RESTART, PROGRESSIVE = (SOUND[name] for name in ("420_83x61", "420_restart_3_83x61", "progressive_420"))


def decoders() -> list[ImageDecoder]:
    return [ImageDecoder(ImagePipeline(), name, judge=True) for name in DECODERS]


REPAIRED = {
    "cut in half": cut(WHOLE, 0.5),
    "nearly whole": cut(WHOLE, 0.95),
    "no data": cut(WHOLE, 0),
    "grey, no data": cut(SOUND["grey_83x61"], 0),
    "restarts, cut": cut(RESTART, 0.5),
    "restarts, one missing": remove_a_restart(RESTART),
    "restarts, a longer segment": lengthen_segment(RESTART),
    "progressive, cut": cut(PROGRESSIVE, 0.3),
    "Huffman data labelled arithmetic": jp.with_frame(WHOLE, marker=0xC9),
    "progressive data labelled arithmetic": jp.with_frame(PROGRESSIVE, marker=0xCA),
    "CMYK, cut": cut(next(odd.data for odd in corpus() if odd.name == "jpeg_cmyk_pillow"), 0.4),
    "with an Adobe marker that libjpeg warns of, cut": cut(
        jp.insert(jp.remove_segments(WHOLE, jp.APP0), jp.segment(jp.APP14, b"Adobe\0\x64\0\0\0\0\7")), 0.5
    ),
    **{f"progressive, bytes of other values, {seed}": make_repairable(PROGRESSIVE, seed) for seed in range(2)},
    **{f"restarts, bytes of other values, {seed}": make_repairable(RESTART, seed) for seed in range(2)},
}
HARMLESS = {
    **SOUND,
    **{odd.name: odd.data for odd in corpus() if odd.code is None and odd.data[:2] == jp.SOI},
    "bytes behind the end": WHOLE + b"trailing" + WHOLE,
    "more data than needed": WHOLE[:-2] + b"\x55" * 50 + jp.EOI,
    "a comment behind the scan": WHOLE[:-2] + jp.segment(jp.COM, b"bye") + jp.EOI,
    "metadata that libjpeg warns of": jp.insert(WHOLE, jp.segment(jp.APP14, b"Adobe\0\x64\0\0\0\0\7")),
    "restarts, with metadata": jp.insert(RESTART, exif_segment(6)),
}


def report_of(decoder: ImageDecoder, data: bytes, window: Window | None = None) -> str:
    """Return the repair that the decoder reports for a window or the whole image, or the code of its error."""
    try:
        info = decoder.probe(data)
        decoder.window(data, info, window or (0, 0, info.width, info.height))
    except LoaderError as error:
        return error.code
    return decoder.repair


def windows_of(data: bytes, draw: random.Random, number: int) -> list[Window]:
    header = parse_header(data)
    tops = [(draw.randrange(header.height), draw.randrange(header.width)) for _ in range(number)]
    return [(x, y, draw.randint(1, header.width - x), draw.randint(1, header.height - y)) for y, x in tops]


@pytest.mark.parametrize("kind", REPAIRED)
def test_every_decoder_reports_a_repair(kind: str) -> None:
    data, (first, *others) = REPAIRED[kind], decoders()
    assert report_of(first, data)
    assert report_of(first, data) not in ("E-CORRUPT", "E-TRUNC", "E-UNSUPPORTED")
    for other in others:
        assert report_of(other, data)
        for window in windows_of(data, random.Random(kind), 10):
            assert bool(report_of(other, data, window)) == bool(report_of(first, data, window)), window
            assert np.array_equal(*(d.window(data, d.probe(data), window) for d in (first, other)))
    assert report_of(ImageDecoder(ImagePipeline()), data) == ""  # only judged on request


@pytest.mark.parametrize("kind", HARMLESS)
def test_nothing_is_reported_for_a_valid_file(kind: str) -> None:
    data = HARMLESS[kind]
    for decoder in decoders():
        assert report_of(decoder, data) == ""
        for window in windows_of(data, random.Random(kind), 2):
            assert report_of(decoder, data, window) == "", (decoder.name, window)
        assert decoder.sound(data, decoder.probe(data)) or kind == "a comment behind the scan"


@pytest.mark.parametrize("kind", [kind for kind in REPAIRED if "labelled" not in kind and "CMYK" not in kind])
def test_a_repair_below_the_crop_is_not_reported(kind: str) -> None:
    data, (first, *others) = REPAIRED[kind], decoders()
    header = parse_header(data)
    reported_at = [bool(report_of(first, data, (0, 0, 9, rows))) for rows in range(1, header.height + 1, 3)]
    if header.stoppable:
        assert reported_at == sorted(reported_at)  # every crop that reaches the damage reports it
        assert not reported_at[0] or kind.endswith("no data") or "other values" in kind
    else:
        assert all(reported_at)
    assert reported_at == [bool(report_of(others[1], data, (0, 0, 9, rows))) for rows in range(1, header.height + 1, 3)]
    assert not first.sound(data, first.probe(data))


def test_damaged_files_are_judged_alike() -> None:
    first, *others = decoders()
    repaired = 0
    for number, data in enumerate(make_inputs(0, 600)):
        try:
            windows = windows_of(data, random.Random(number), 2) if data[:2] == jp.SOI else []
        except LoaderError:
            continue
        for window in windows:
            verdicts = [report_of(decoder, data, window) for decoder in (first, *others)]
            kinds = {verdict[:2] == "E-" or bool(verdict) for verdict in verdicts}
            assert len(kinds) == 1, (number, window, verdicts)
            assert len({verdict[:2] == "E-" for verdict in verdicts}) == 1, (number, window, verdicts)
            repaired += bool(verdicts[0]) and verdicts[0][:2] != "E-"
    assert repaired > 50


@pytest.mark.parametrize("junk", [1000, 10_000])
def test_many_markers_after_a_scan_are_judged_alike(junk: int) -> None:
    data = WHOLE[:-2] + jp.segment(jp.COM, b"") * junk + jp.EOI
    assert {report_of(decoder, data) for decoder in decoders()} == {""}
    assert {report_of(decoder, data, (0, 0, 83, 20)) for decoder in decoders()} == {
        "" if junk < 10_000 else "E-CORRUPT"
    }


@pytest.mark.parametrize("warning", ["Corrupt JPEG data: bad ICC marker", "Unknown Adobe color transform code 7"])
def test_warnings_about_metadata_report_no_repair(warning: str) -> None:
    assert not any(reports_repair(warning, parse_header(data), 20, 2000) for data in (WHOLE, PROGRESSIVE))
