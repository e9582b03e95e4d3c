"""Stand-ins for an old nvJPEG without a GPU: a library that reports its version, and its wrong edges."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import jpeg_parts as jp
import pytest
from native_tests import native

from penstock.pipelines.image_types import Window
from penstock.pipelines.jpeg.header import parse_header
from penstock.pipelines.jpeg.strips import mcu_size
from penstock.pipelines.native.recode import NativeRecoder
from penstock.pipelines.sample.dali_graph import CropTask, DaliGraph

SONAME = "libnvjpeg.so.13"
_SOURCE = """
int nvjpegGetProperty(int part, int *value)
{{
    const int version[] = {{ {version} }};
    *value = version[part];
    return {status};
}}
"""


def build_nvjpeg(folder: Path, version: tuple[int, int, int], *, soname: str = SONAME, status: int = 0) -> Path:
    """Compile a library of that name in `folder` that only reports its version; skip without a compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler")
    folder.mkdir(exist_ok=True)
    source, library = folder / "nvjpeg.c", folder / soname
    source.write_text(_SOURCE.format(version=", ".join(map(str, version)), status=status))
    subprocess.run([compiler, "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", library, source], check=True)
    return library


def give_regions_wrong_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make DALI decode each region from a JPEG that ends with it; its chroma is interpolated without neighbours.

    The right and lower edges are wrong, as are the left and upper ones on a boundary of MCUs. Regions under 16 pixels
    stay correct, because a mean over so few pixels would show the edge.
    """
    feed = DaliGraph._feed

    def feed_cut(graph: DaliGraph, tasks: Sequence[CropTask]) -> None:
        regions = graph.coded and not graph._settings.whole
        feed(graph, [_cut(task) for task in tasks] if regions else tasks)

    monkeypatch.setattr(DaliGraph, "_feed", feed_cut)


def _cut(task: CropTask) -> CropTask:
    data, (x, y, w, h) = bytes(task.data), task.window
    width, height = mcu_size(parse_header(data))
    if min(w, h) < 16:
        return task
    left, top = x % width, y % height
    return task._replace(data=_crop(data, (x - left, y - top, left + w, top + h)), window=(left, top, w, h))


def _crop(data: bytes, window: Window) -> bytes:
    """A part of a JPEG, from a boundary of MCUs on, with the same coefficients."""
    header, (x, y, w, h) = parse_header(data), window
    width, height = mcu_size(header)
    columns, rows = -(-header.width // width), -(-header.height // height)
    made = NativeRecoder(native()).recode(data, 1, columns * rows)
    assert made is not None
    start = parse_header(made.data).scan_offset
    ends = [0, *made.segment_ends.tolist()]
    parts = [made.data[start + begin : start + end] for begin, end in itertools.pairwise(ends)]
    parts[-1] += b"\xff\xd0"  # each ends with a marker
    wanted = [
        parts[row * columns + column][:-2]
        for row in range(y // height, -(-(y + h) // height))
        for column in range(x // width, -(-(x + w) // width))
    ]
    scan = b"".join(part + bytes([0xFF, 0xD0 + number % 8]) for number, part in enumerate(wanted))
    return jp.with_frame(made.data[:start], size=(w, h)) + scan[:-2] + jp.EOI
