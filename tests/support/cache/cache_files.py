"""Cache files written with h5py alone, byte for byte as the format specifies, for tests of readers."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt

from penstock.loaders.data.cache.format import FILE, PIXELS, RECORD, STRIPS, About, Encoding
from penstock.pipelines.jpeg.header import parse_header
from penstock.pipelines.jpeg.strips import StripGeometry, mcu_size, restart_interval, segment_ends


class Item(NamedTuple):
    """One stored image: fields of its record, bytes of its head, remaining bytes."""

    fields: dict[str, int]
    head: bytes
    body: bytes


def pixel_item(pixels: npt.NDArray[np.uint8], label: int = 0, orientation: int = 1, strip_rows: int = 16) -> Item:
    """Raw pixels [h, w, 3]."""
    crc, head = 0, b""
    for top in range(0, len(pixels), strip_rows):
        crc = zlib.crc32(pixels[top : top + strip_rows].tobytes(), crc)
        head += struct.pack("<I", crc)
    height, width = pixels.shape[:2]
    fields = {"kind": PIXELS, "width": width, "height": height, "strip_rows": strip_rows}
    return Item({**fields, "label": label, "orientation": orientation}, head, pixels.tobytes())


def strip_item(data: bytes, strip_rows: int = 2, scan: bytes | None = None) -> Item:
    """A JPEG with restart markers, cut at the markers; `scan` replaces its coded data."""
    header = parse_header(data)
    scan = data[header.scan_offset : -2] if scan is None else scan
    geometry = StripGeometry(header.width, header.height, *mcu_size(header), restart_interval(data, header))
    ends = [*segment_ends(np.frombuffer(scan, np.uint8)).tolist(), len(scan)]
    step, crc, head, begin = strip_rows * geometry.segments, 0, b"", 0
    for strip in range(-(-geometry.rows // strip_rows)):
        end = ends[min((strip + 1) * step, len(ends)) - 1]
        crc = zlib.crc32(scan[begin:end], crc)
        head += struct.pack("<II", end, crc)
        begin = end
    fields = {"kind": STRIPS, "orientation": 1, "strip_rows": strip_rows, "height_offset": header.height_offset}
    return Item({**fields, **geometry._asdict()}, head + data[: header.scan_offset], scan)


def file_item(data: bytes, label: int = 0) -> Item:
    """An unchanged file."""
    return Item({"kind": FILE, "label": label, "orientation": 1}, b"", data)


def tables(items: Sequence[Item]) -> dict[str, npt.NDArray[Any]]:
    """The datasets of a cache except `about`."""
    records, payload = np.zeros(len(items), RECORD), b""
    for record, item in zip(records, items, strict=True):
        for name, value in item.fields.items():
            record[name] = value
        record["offset"], record["length"] = len(payload), len(item.head) + len(item.body)
        record["head"], record["crc"] = len(item.head), zlib.crc32(item.head or item.body)
        payload += item.head + item.body
    names = [b"class/%d.jpg" % number for number in range(len(items))]
    return {
        "payload": np.frombuffer(payload, np.uint8),
        "samples": records,
        "names": np.frombuffer(b"".join(names), np.uint8),
        "name_ends": np.cumsum([len(name) for name in names]).astype("<i8"),
    }


def about_of(datasets: Mapping[str, npt.NDArray[Any]], **changes: Any) -> npt.NDArray[np.uint8]:
    """The dataset `about` that matches the others."""
    names = ("samples", "names", "name_ends")
    digests = {name: hashlib.blake2b(datasets[name].tobytes(), digest_size=32).hexdigest() for name in names}
    count = len(datasets["samples"])
    known: dict[str, Any] = {
        "encoding": asdict(Encoding(kind="raw")),
        "fingerprint": "ab" * 32,
        "classes": ["one", "two\udcff"],
        "source": {"root": "photos", "fingerprint": "ab" * 32, "content": "cd" * 32},
        "shard": [0, 1, 0, count],
        "samples": count,
        "payload_bytes": len(datasets["payload"]),
        "source_bytes": len(datasets["payload"]),
        "counts": {},
        "digests": digests,
    }
    return np.frombuffer(About(**{**known, **changes}).pack(), np.uint8)


def write_cache(path: Path, items: Sequence[Item], **changes: Any) -> Path:
    """Write a complete, sound cache of `items`; `changes` replace fields of its About."""
    datasets = tables(items)
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        for name, data in {**datasets, "about": about_of(datasets, **changes)}.items():
            file.create_dataset(name, data=data)
    path.chmod(0o600)
    return path
