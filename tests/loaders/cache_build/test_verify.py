"""Checks of a whole cache, with and without its source: damage is found and named, sound images are not reported."""

from __future__ import annotations

import math
import random
import zlib
from pathlib import Path

import numpy as np
import pytest
from odd_images import corpus, encoded, exif_segment, scene
from photo_folder import photo, write_folder

from penstock.loaders import LoaderError
from penstock.loaders.cache_build.build_file import BuildRequest, build_file
from penstock.loaders.cache_build.verify import BadImage, CacheReport, find_damage, refuse_other_source, verify_cache
from penstock.loaders.data.cache.format import FILE, PIXELS, RECORD, STRIP, STRIPS, Encoding, Record
from penstock.loaders.data.cache.hdf5_cache import Hdf5Cache, open_cache
from penstock.loaders.data.files.arrays import ArraySource
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.sources.contract import Source

ENCODINGS = {
    "lossless": Encoding(),
    "lossy": Encoding(resize=32, quality=80),
    "raw": Encoding(kind="raw"),
    "raw small": Encoding(kind="raw", resize=32),
}
ODD = {odd.name: odd.data for odd in corpus()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """14 photos, including an empty one, a truncated one, an odd one, a PNG and a rotated one."""
    root = write_folder(tmp_path / "photos", 14)
    (root / "class0" / "0000.jpg").write_bytes(b"")
    (root / "class1" / "0001.jpg").write_bytes(ODD["jpeg_baseline_cut_50"])
    (root / "class2" / "0002.jpg").write_bytes(ODD["jpeg_cmyk_pillow"])
    (root / "class0" / "0003.jpg").write_bytes(encoded(scene(40, 61), "PNG"))
    turned = photo(4)
    (root / "class1" / "0004.jpg").write_bytes(turned[:2] + exif_segment(6) + turned[2:])
    return root


def scanned(root: Path) -> ImageFolder:
    return ImageFolder(root, rescan=True)


def built(source: Source, path: Path, encoding: Encoding) -> Hdf5Cache:
    build_file(BuildRequest(source=source, encoding=encoding, workers=0), path)
    return open_cache(path)


@pytest.fixture
def cache(root: Path, tmp_path: Path) -> Hdf5Cache:
    return built(scanned(root), tmp_path / "cache.h5", Encoding())


# ---- the cache itself


@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)
def test_a_built_cache_is_sound(encoding: Encoding, root: Path, tmp_path: Path) -> None:
    source, workers = scanned(root), 3 if encoding.lossless else 1
    cache = built(source, tmp_path / "cache.h5", encoding)
    steps: list[int] = []
    report = verify_cache(cache, progress=steps.append, workers=workers)
    assert report.damaged == []
    assert report.sound
    assert sum(steps) == report.samples == 14
    assert sum(report.kinds.values()) == 14
    assert report.kinds["pixels" if encoding.kind == "raw" else "strips"] >= 10
    assert report.num_bytes == sum(about.payload_bytes for about in cache.about)
    assert report.describe() == f"14 images, {report.num_bytes:,} bytes: sound"
    refuse_other_source(cache, source)


def altered(record: np.void, **fields: int) -> Record:
    copy = np.array(record, RECORD)
    for name, value in fields.items():
        copy[name] = value
    return Record._make(copy.item())


STRIP_LIES = [{"width": 48}, {"height": 48}, {"mcu_width": 8}, {"mcu_height": 32}, {"segment_mcus": 1}]
STRIP_LIES += [{"strip_rows": 2}, {"height_offset": 90}, {"label": 3}, {"label": -1}, {"orientation": 0}]
STRIP_LIES += [{"orientation": 9}, {"crc": 1}, {"kind": FILE}, {"kind": PIXELS}, {"head": 100}]
PIXEL_LIES = [{"width": 30}, {"height": 30}, {"strip_rows": 8}, {"kind": FILE}, {"orientation": 0}]


def test_a_record_that_does_not_fit_its_bytes_is_found(cache: Hdf5Cache, tmp_path: Path) -> None:
    wide = (cache.records["mcu_width"] == 16) & (cache.records["width"] > 64) & (cache.records["height"] > 64)
    index = int(np.flatnonzero(wide & (cache.records["kind"] == STRIPS))[0])
    pixels = ArraySource(np.ascontiguousarray(scene(60, 60)[None]), np.zeros(1, np.int64))
    raw = built(pixels, tmp_path / "raw.h5", Encoding(kind="raw"))
    for source, place, classes, lies in ((cache, index, 3, STRIP_LIES), (raw, 0, 1, PIXEL_LIES)):
        record, stored = source.records[place], source.stored(place)
        assert find_damage(altered(record), stored, classes) == ""
        assert [fields for fields in lies if find_damage(altered(record, **fields), stored, classes) == ""] == []


def test_strips_that_do_not_end_with_their_rows_are_found(cache: Hdf5Cache) -> None:
    """Every CRC is correct: the fault of a builder, not damage."""
    index = int(np.flatnonzero(cache.records["kind"] == STRIPS)[0])
    record = Record._make(cache.records[index].item())
    count = math.ceil(math.ceil(record.height / record.mcu_height) / record.strip_rows)
    for shift, expected in ((0, ""), (1, "its strips end elsewhere")):
        data = bytearray(cache.stored(index))
        table = np.frombuffer(data, STRIP, count)
        table["end"][0] += shift
        begin = crc = 0
        for row, end in enumerate(table["end"].tolist()):
            table["crc"][row] = crc = zlib.crc32(data[record.head + begin : record.head + end], crc)
            begin = end
        record_with_crc = record._replace(crc=zlib.crc32(data[: record.head]))
        assert find_damage(record_with_crc, bytes(data), 3) == expected


def test_random_records_and_heads_never_raise(cache: Hdf5Cache) -> None:
    """Even where the CRCs of the head are correct."""
    draw = random.Random(1)
    index = int(np.flatnonzero(cache.records["kind"] == STRIPS)[0])
    names = [
        "head",
        "width",
        "height",
        "kind",
        "mcu_width",
        "mcu_height",
        "segment_mcus",
        "strip_rows",
        "height_offset",
    ]
    stored, found = bytearray(cache.stored(index)), 0
    for _ in range(3000):
        record, data = cache.records[index].copy(), bytearray(stored)
        for name in draw.sample(names, draw.randrange(3)):
            record[name] = draw.choice((1, 2, 8, 16, 100, int(record[name]) + 1))
        for _ in range(draw.randrange(3)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        record["crc"] = zlib.crc32(data if record["kind"] == FILE else data[: int(record["head"])])
        found += find_damage(altered(record), bytes(data), 3) != ""
    assert 1500 < found < 3000


def test_a_report_names_the_first_findings_and_counts_the_rest() -> None:
    found = [BadImage(i, b"a\xff\n%d" % i, "the CRC differs") for i in range(5)]
    lines = CacheReport(9, 1000, {}, found).describe(most=4).split("\n")
    assert lines[0] == "9 images, 1,000 bytes: 5 bad"
    assert lines[1] == r"  damaged sample=0 name='a\udcff\n0': the CRC differs"
    assert lines[4:] == [r"  damaged sample=3 name='a\udcff\n3': the CRC differs", "  and 1 more"]


# ---- with its source


def test_changed_labels_are_reported(tmp_path: Path) -> None:
    images, labels = np.stack([scene(20, 20)] * 4), np.array([0, 1, 0, 1])
    cache = built(ArraySource(images, labels), tmp_path / "cache.h5", Encoding())
    refuse_other_source(cache, ArraySource(images, labels))
    with pytest.raises(LoaderError, match="2 labels differ, the first at image 1"):
        refuse_other_source(cache, ArraySource(images, np.array([0, 0, 1, 1])))
    images[3, 5, 5] ^= 1
    with pytest.raises(LoaderError, match="E-STALE"):
        refuse_other_source(cache, ArraySource(images, labels))
