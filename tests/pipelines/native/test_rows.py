"""Rows of batches with wrong descriptions of the stored data: the library leaves them to Python."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jpeg_parts as jp
import numpy as np
import pytest
import simplejpeg
from native_tests import to_images
from native_windows import info
from odd_images import exif_segment, jpeg, textured
from progressive_jpegs import split_scans

from penstock.pipelines.native.recode import NativeRecoder
from penstock.pipelines.native.rows import (
    ENCODED,
    FILE,
    MEMORY,
    NO_NAMES,
    PIXELS,
    ROW,
    STORED,
    STRIPS,
    Names,
    NativeStage,
    Progress,
)
from penstock.pipelines.plan.crops import native_crops
from penstock.pipelines.sample.orientation import upright
from penstock.pipelines.spec import ImagePipeline

OK, UNSUPPORTED, NO_MEMORY, UNREADABLE = 0, 1, 2, 4
MCUS, STRIP_ROWS, SIDES = 2, 2, (90, 128)  # of one segment, of one strip, height and width of the image
WINDOW = (3, 35, 40, 20)


class Stored:
    """A file with an image of one kind, stored as in a cache, and the row that describes it."""

    def __init__(self, folder: Path, native: ctypes.CDLL, kind: int) -> None:
        self.pixels, self.row = textured(*SIDES), np.zeros(1, ROW)
        self.kind, self.library = kind, native
        entry, header = "<I", b""
        parts = [self.pixels[y : y + STRIP_ROWS].tobytes() for y in range(0, SIDES[0], STRIP_ROWS)]
        if kind == STRIPS:
            data = jpeg(self.pixels, quality=90, subsampling=2)
            self.pixels = simplejpeg.decode_jpeg(data, "RGB")
            made = NativeRecoder(native).recode(data, MCUS, 8 * 6 // MCUS)
            assert made is not None
            about = info(native, made.data)
            assert about is not None
            header, ends = made.data[: about.scan_offset], made.segment_ends[7::8].tolist()
            parts = [made.data[about.scan_offset :][a:b] for a, b in zip([0, *ends], ends, strict=False)]
            self.row["height_offset"], entry = about.height_offset, "<II"
        self.entries, self.entry, self.header = len(parts), struct.Struct(entry), header
        self.parts = b"".join(parts)
        self.table, done = [], b""
        for part in parts:
            done += part
            self.table.append((len(done), zlib.crc32(done))[-len(entry) + 1 :])
        self.path = folder / "stored"
        self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT)
        self.row["fd"], self.row["kind"], self.row["offset"], self.row["orientation"] = self.descriptor, kind, 5, 1
        self.row["height"], self.row["width"] = SIDES
        self.row["strip_rows"], self.row["segment_mcus"] = STRIP_ROWS, MCUS
        self.row["mcu_width"] = self.row["mcu_height"] = 16
        self.seal()

    def __del__(self) -> None:
        os.close(self.descriptor)

    def seal(self) -> None:
        """Write table, header and parts, and set the row fields that follow from them."""
        head = b"".join(self.entry.pack(*words) for words in self.table) + self.header
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, head + self.parts, 5)
        self.row["head"], self.row["crc"], self.row["size"] = len(head), zlib.crc32(head), len(head + self.parts)

    def result(self, window: Any = WINDOW, max_pixels: int = 2**62, **lies: Any) -> int:
        """Return the result of the row with changed fields; compare the pixels if an image is made."""
        stage = NativeStage(self.library, max_pixels, apply_exif=False)
        rows = self.row.copy()
        for name, value in lies.items():
            rows[name] = value
        assert stage.load(rows, NO_NAMES)
        rows["window"], images = window, np.zeros((1, max(window[3], 1), max(window[2], 1), 3), np.uint8)
        assert stage.fill(to_images(rows, images), images if images.shape[1:3] == (window[3], window[2]) else None)
        if rows["result"][0] == OK:
            x, y, w, h = window
            assert np.array_equal(images[0], self.pixels[y : y + h, x : x + w])
        return int(rows["result"][0])

    def cut(self, window: Any = WINDOW, room: int = 1 << 17, **lies: Any) -> tuple[np.void, np.ndarray]:
        """Return the row of a window that was cut into `room` bytes, and these bytes; nothing is written after them."""
        stage, rows = NativeStage(self.library, 2**62, apply_exif=False), self.row.copy()
        for name, value in lies.items():
            rows[name] = value
        parts = np.full(room + 64, 0xA5, np.uint8)
        assert stage.load(rows, NO_NAMES)
        rows["window"] = window
        assert stage.cut(rows, parts[:room])
        assert (parts[room:] == 0xA5).all()
        return rows[0], parts[:room]


@pytest.fixture(params=[STRIPS, PIXELS], ids=["strips", "pixels"])
def stored(request: pytest.FixtureRequest, tmp_path: Path, native: ctypes.CDLL) -> Stored:
    return Stored(tmp_path, native, request.param)


@pytest.fixture
def strips(tmp_path: Path, native: ctypes.CDLL) -> Stored:
    return Stored(tmp_path, native, STRIPS)


# Field, value, results of strips and of pixels; None: the same image.
LIES: list[tuple[str, int, int | None, int | None]] = [
    ("size", 1 << 45, None, None),
    ("size", 0, UNSUPPORTED, UNSUPPORTED),
    ("size", -1, UNSUPPORTED, UNSUPPORTED),
    ("size", 900, UNSUPPORTED, UNSUPPORTED),
    ("head", 0, UNSUPPORTED, UNSUPPORTED),
    ("head", 11, UNSUPPORTED, UNSUPPORTED),
    ("head", 2**32 - 1, UNSUPPORTED, UNSUPPORTED),
    ("crc", 77, UNSUPPORTED, UNSUPPORTED),
    ("fd", -1, UNREADABLE, UNREADABLE),
    ("offset", -1, UNREADABLE, UNREADABLE),
    ("offset", 2**63 - 1, UNREADABLE, UNREADABLE),
    ("offset", 1 << 40, UNREADABLE, UNREADABLE),
    ("offset", 6, UNSUPPORTED, UNSUPPORTED),
    ("width", 0, UNSUPPORTED, UNSUPPORTED),
    ("width", -(2**31), UNSUPPORTED, UNSUPPORTED),
    ("width", 129, UNSUPPORTED, UNSUPPORTED),
    ("height", 0, UNSUPPORTED, UNSUPPORTED),
    ("height", -(2**31), UNSUPPORTED, UNSUPPORTED),
    ("height", 2**31 - 1, UNSUPPORTED, UNSUPPORTED),
    ("height", 91, UNSUPPORTED, UNSUPPORTED),
    ("strip_rows", 0, UNSUPPORTED, UNSUPPORTED),
    ("strip_rows", 1, UNSUPPORTED, UNSUPPORTED),
    ("mcu_height", 0, UNSUPPORTED, None),
    ("mcu_height", 255, UNSUPPORTED, None),
    ("mcu_width", 0, UNSUPPORTED, None),
    ("segment_mcus", 1, UNSUPPORTED, None),
    ("height_offset", 0, UNSUPPORTED, None),
    ("orientation", 77, None, None),
]


@pytest.mark.parametrize(("field", "value", "of_strips", "of_pixels"), LIES)
def test_a_wrong_record_is_detected(
    stored: Stored, field: str, value: int, of_strips: int | None, of_pixels: int | None
) -> None:
    expected = of_strips if stored.kind == STRIPS else of_pixels
    assert stored.result() == OK
    assert stored.result(**{field: value}) == (expected or OK)


def test_strips_of_a_progressive_image_are_unsupported(strips: Stored) -> None:
    assert strips.result() == strips.cut()[0]["result"] == OK
    strips.header = strips.header.replace(b"\xff\xc0", b"\xff\xc2")[:-2] + bytes(2)
    assert info(strips.library, strips.header) is not None, "the header alone is accepted"
    strips.seal()
    assert strips.result() == strips.cut()[0]["result"] == UNSUPPORTED


def test_bytes_after_the_header_of_strips_are_unsupported(strips: Stored) -> None:
    assert strips.result() == strips.cut()[0]["result"] == OK
    strips.header += b"\0\0"
    strips.seal()
    assert strips.result() == strips.cut()[0]["result"] == UNSUPPORTED


@pytest.mark.parametrize(
    "window",
    [(-1, 0, 4, 4), (0, -1, 4, 4), (0, 0, 0, 4), (0, 0, 4, 0), (125, 0, 4, 4), (0, 87, 4, 4), (2**31 - 1, 0, 4, 4)],
)
def test_a_window_outside_is_unsupported(stored: Stored, window: tuple[int, int, int, int]) -> None:
    assert stored.result(window) == UNSUPPORTED


def test_cut_has_the_bounds_of_fill(stored: Stored) -> None:
    """With the record's height, rounding up the rows would overflow: detected with UBSan in $CFLAGS."""
    assert stored.cut()[0]["result"] == OK
    assert stored.cut(height=2**31 - 1)[0]["result"] == stored.cut((0, 87, 4, 4))[0]["result"] == UNSUPPORTED


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_window_is_of_the_upright_image(stored: Stored, orientation: int) -> None:
    x, y, w, h = window = (7, 20, 30, 40)
    stage, rows = NativeStage(stored.library, 2**62, apply_exif=True), stored.row.copy()
    rows["orientation"], images = orientation, np.zeros((1, h, w, 3), np.uint8)
    assert stage.load(rows, NO_NAMES)
    rows["window"] = window
    assert stage.fill(to_images(rows, images), images)
    assert rows["result"] == OK
    assert np.array_equal(images[0], upright(stored.pixels, orientation)[y : y + h, x : x + w])


def test_nothing_is_written_outside_the_batch_and_the_worker_is_freed_with_its_stage(native: ctypes.CDLL) -> None:
    stage = NativeStage(native, 2**62, apply_exif=False)
    rows, images = np.zeros(1, ROW), np.zeros((1, 8, 8, 3), np.uint8)
    rows["result"] = UNSUPPORTED  # so that nothing is written if the check is missing
    for row in (-1, 1):
        rows["row"] = row
        with pytest.raises(AssertionError):
            stage.fill(to_images(rows, images), images)
    freed: list[int] = []
    worker, stage._library = stage._worker, SimpleNamespace(pn_worker_free=freed.append)  # type: ignore[assignment]
    del stage
    assert freed == [worker]
    native.pn_worker_free(worker)


@pytest.mark.parametrize("first", [-1, 0, 1, 2**40])
def test_a_planned_image_outside_the_batch_is_not_drawn(native: ctypes.CDLL, first: int) -> None:
    """Five images of 192 bytes, the first at `first` bytes after the batch's start: some do not lie in it."""
    pixels, stage, rows = textured(20, 30), NativeStage(native, 2**62, apply_exif=False), np.zeros(5, ROW)
    rows["kind"], rows["offset"], rows["size"] = MEMORY, pixels.ctypes.data, pixels.nbytes
    rows["width"], rows["height"], rows["row"] = 30, 20, range(5)
    crops = native_crops((ImagePipeline(size=(8, 8), crop="full"),), 0, 0)
    assert crops is not None
    memory = np.zeros(5 * 192, np.uint8)
    inside = [0 <= first + 192 * row <= 2 * 192 for row in range(5)]  # of a memory of three images
    assert stage.make(rows, NO_NAMES, crops.at([first]), None, memory[: 3 * 192], None) == sum(inside)
    assert [result == OK for result in rows["result"]] == inside
    assert not memory[3 * 192 :].any()


def test_an_image_is_made_with_all_of_its_views_and_recorded_only_in_its_row(native: ctypes.CDLL) -> None:
    """The second view of the first image and the first of the third do not fit; the fourth has an impossible row."""
    pixels, stage, rows = textured(20, 30), NativeStage(native, 2**62, apply_exif=False), np.zeros((4, 2), ROW)
    rows["kind"], rows["offset"], rows["size"] = MEMORY, pixels.ctypes.data, pixels.nbytes
    rows["width"], rows["height"], rows["row"] = 30, 20, [[0], [1], [2], [-1]]
    rows["repeats"][:, 1] = 1
    view = ImagePipeline(size=(8, 8), crop="full")
    crops = native_crops((view, view), 0, 0)
    assert crops is not None
    memory = np.zeros(5 * 192, np.uint8)
    notes = np.full(6 * 200, 0xA5, np.uint8).view(np.dtype((np.void, 200)))[2:]
    whole = np.asarray(notes.base if notes.base is not None else notes)
    assert stage.make(rows.reshape(-1), NO_NAMES, crops.at([0, 2 * 192]), None, memory, notes) == 3
    assert stage.make(rows.reshape(-1), NO_NAMES, crops.at([0, 4 * 192]), None, memory, notes) == 1
    assert rows["result"][3].tolist() == [UNSUPPORTED, UNSUPPORTED]
    assert (whole.view(np.uint8)[: 2 * 200] == 0xA5).all()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("progressive", [False, True])
def test_memory_of_a_large_image_is_freed_with_its_batch(native: ctypes.CDLL, progressive: bool) -> None:
    """One rotated photo of 40 megapixels; otherwise every thread would keep its memory."""
    data, stage, rows = jpeg(np.zeros((5000, 8000, 3), np.uint8), progressive=progressive), None, np.zeros(1, ROW)
    held, images = np.frombuffer(jp.insert(data, exif_segment(6)), np.uint8), np.zeros((1, 64, 64, 3), np.uint8)
    rows["kind"], rows["offset"], rows["size"] = ENCODED, held.ctypes.data, held.size
    stage = NativeStage(native, 10**8, apply_exif=True)
    before = resident_bytes()
    assert stage.load(rows, NO_NAMES)
    rows["window"] = (0, 0, 5000, 8000)
    assert stage.fill(to_images(rows, images), images)
    assert rows["result"].tolist() == [UNSUPPORTED if progressive else OK]  # of more than 150 MB of coefficients
    assert resident_bytes() - before < 50e6


@pytest.mark.parametrize("window", [WINDOW, (0, 0, SIDES[1], SIDES[0]), (32, 16, 33, 17)])
def test_a_cut_contains_the_window_and_fits(stored: Stored, window: tuple[int, int, int, int]) -> None:
    x, y, w, h = window
    row, parts = stored.cut(window)
    assert row["result"] == OK
    if stored.kind == PIXELS:
        image = parts[: row["size"]].reshape(h, w, 3)
    else:
        image = simplejpeg.decode_jpeg(parts[: row["size"]].tobytes(), "RGB", strict=True)
    left, top = row["window"][:2]
    assert np.array_equal(image[top : top + h, left : left + w], stored.pixels[y : y + h, x : x + w])
    if w == SIDES[1]:  # everything read is written
        assert stored.cut(window, int(row["size"]))[0]["result"] == OK
        assert stored.cut(window, int(row["size"]) - 1)[0]["result"] == NO_MEMORY


def test_memory_that_cannot_be_allocated(tmp_path: Path, native: ctypes.CDLL) -> None:
    stored, side = Stored(tmp_path, native, PIXELS), 1 << 20
    stage, rows = NativeStage(native, 2**62, apply_exif=False), stored.row.copy()
    rows["width"] = rows["height"] = side
    rows["size"], rows["strip_rows"] = 2**62, 2**16 - 1
    assert stage.load(rows, NO_NAMES)
    rows["window"] = (0, 0, side, side)
    assert stage.fill(rows, None)
    assert rows["result"] in (NO_MEMORY, UNREADABLE)  # a kernel may overcommit three terabytes


def test_images_of_too_many_pixels_are_unsupported(stored: Stored) -> None:
    assert stored.result(max_pixels=90 * 128 - 1) == UNSUPPORTED
    assert stored.result(max_pixels=90 * 128) == OK


def test_damage_is_left_to_python(stored: Stored) -> None:
    whole = 5 + int(stored.row["size"][0])
    assert stored.result((0, 80, 9, 10)) == stored.result((0, 0, 128, 90)) == OK
    os.pwrite(stored.descriptor, b"\xa5", whole - 40)
    assert stored.result((0, 80, 9, 10)) == UNSUPPORTED
    assert stored.result((0, 0, 9, 9)) == OK  # the damage is not read
    os.ftruncate(stored.descriptor, whole - 40)
    assert stored.result((0, 80, 9, 10)) == UNREADABLE
    os.ftruncate(stored.descriptor, 9)
    assert stored.result((0, 0, 9, 9)) == UNREADABLE


def test_strips_that_end_where_they_should_not(strips: Stored) -> None:
    """A checksum proves that a table is complete, not that it is correct."""
    table = list(strips.table)
    for number, end in ((0, 2**32 - 1), (0, table[2][0] + 1), (2, 0), (2, 2**32 - 1), (2, len(strips.parts) + 1)):
        strips.table = list(table)
        strips.table[number] = (end, table[number][1])
        strips.seal()
        assert strips.result((0, 40, 128, 50)) == UNSUPPORTED, (number, end)


def test_an_extra_marker_is_detected(strips: Stored) -> None:
    whole = (0, 0, *SIDES[::-1])
    assert strips.cut(whole)[0]["result"] == strips.result(whole) == OK
    strips.parts += b"\xff\xd0"
    strips.table[-1] = (len(strips.parts), zlib.crc32(strips.parts))
    strips.seal()
    assert strips.cut(whole)[0]["result"] == strips.result(whole) == UNSUPPORTED


def test_files_that_changed_since_the_scan_are_not_read(tmp_path: Path, native: ctypes.CDLL) -> None:
    data, root = jpeg(textured(*SIDES), quality=90, subsampling=2), os.fsencode(tmp_path) + b"/"
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "name").write_bytes(data)
    (tmp_path / "name").write_bytes(data)
    os.mkfifo(tmp_path / "pipe")
    names = Names(root, np.frombuffer(b"sub\0", np.uint8), np.frombuffer(b"namepipe\0", np.uint8))

    times = [(tmp_path / name).stat().st_mtime_ns for name in ("name", "sub/name")]

    def result(*, names: Names = names, images: bool = True, **fields: int) -> int:
        rows = np.zeros(1, ROW)
        rows["kind"], rows["size"], rows["file_size"], rows["name_bytes"] = FILE, len(data), len(data), 4
        rows["mtime_ns"] = times[fields.get("folder_bytes", 0) > 0]
        for name, value in fields.items():
            rows[name] = value
        stage = NativeStage(native, 10**8, apply_exif=False)
        assert stage.load(rows, names)
        rows["window"] = (0, 0, 8, 8)
        made = np.zeros((1, 8, 8, 3), np.uint8)
        assert stage.fill(to_images(rows, made), made if images else None)
        return int(rows["result"][0])

    assert result() == result(folder_bytes=3) == result(images=False) == OK
    lies = {"name_bytes": (0, -1, 5000, 9), "folder_bytes": (-1, 4, 2), "name": (4,), "mtime_ns": (0,)}
    lies |= {"file_size": (5, len(data) + 1), "offset": (-1, 1)}
    for field, values in lies.items():
        for value in values:
            assert result(**{field: value}) == UNREADABLE, (field, value)
    assert result(names=Names(root, names.folders, np.frombuffer(b"name\0pipe", np.uint8)), name_bytes=9) == UNREADABLE
    assert result(size=3) == result(size=-1) == result(size=1 << 40) == UNSUPPORTED
    assert result(names=names._replace(root=root + b"x" * 5000)) == UNREADABLE
    os.utime(tmp_path / "name", (12 * 10**9, 12 * 10**9))  # in ns more than 64 bits
    assert result() == UNREADABLE


def test_a_range_of_a_file_and_bytes_in_memory_equal_the_file(tmp_path: Path, native: ctypes.CDLL) -> None:
    data, before = jpeg(textured(*SIDES), quality=90, subsampling=2), b"header of a member"
    (tmp_path / "file").write_bytes(data)
    (tmp_path / "tar").write_bytes(before + data + b"next member")
    held = np.frombuffer(data, np.uint8)
    rows = np.zeros(3, ROW)
    rows["row"], rows["size"], rows["kind"] = range(3), len(data), [FILE, FILE, ENCODED]
    rows["offset"] = [0, len(before), held.ctypes.data]
    for row, name in zip(rows, ("file", "tar", "file"), strict=True):
        status = (tmp_path / name).stat()
        row["file_size"], row["mtime_ns"] = status.st_size, status.st_mtime_ns
    rows["name"], rows["name_bytes"] = [0, 4, 0], [4, 3, 4]
    names = Names(os.fsencode(tmp_path) + b"/", NO_NAMES.folders, np.frombuffer(b"filetar", np.uint8))
    for files in (None, np.zeros(3 * len(data), np.uint8)):  # in place, and in memory that the caller keeps
        stage, images = NativeStage(native, 10**8, apply_exif=False), np.zeros((3, 60, 50, 3), np.uint8)
        assert stage.load(rows, names, files=files)
        rows["window"] = (5, 7, 80, 70)
        assert stage.fill(to_images(rows, images), images)
        assert rows["result"].tolist() == [OK] * 3
        assert np.array_equal(images[0], images[1])
        assert np.array_equal(images[0], images[2])
        assert images[0].any()
        assert files is None or all(bytes(files[at : at + len(data)]) == data for at in rows["at"].tolist())


def test_a_file_of_a_cache_is_checked(tmp_path: Path, native: ctypes.CDLL) -> None:
    data = jpeg(textured(*SIDES), quality=90, subsampling=2)
    huge = info(native, data)
    assert huge is not None
    claimed = data[: huge.height_offset] + struct.pack(">HH", 60000, 1600) + data[huge.height_offset + 4 :]
    (tmp_path / "cache").write_bytes(data + claimed)
    descriptor, stage = os.open(tmp_path / "cache", os.O_RDONLY), NativeStage(native, 10**8, apply_exif=False)
    for offset, crc, expected in (
        (0, zlib.crc32(data), OK),
        (0, 1, UNSUPPORTED),
        (len(data), zlib.crc32(claimed), UNSUPPORTED),
    ):
        rows = np.zeros(1, ROW)
        rows["kind"], rows["fd"], rows["size"], rows["offset"], rows["crc"] = STORED, descriptor, len(data), offset, crc
        assert stage.load(rows, NO_NAMES)
        rows["window"] = (0, 0, *((1600, 60000) if offset else (8, 8)))
        images = np.zeros((1, 8, 8, 3), np.uint8)
        assert stage.fill(to_images(rows, images), images)
        assert rows["result"] == expected
    rows = np.zeros(1, ROW)
    rows["kind"], rows["fd"], rows["size"], rows["crc"] = STORED, descriptor, len(data), zlib.crc32(data)
    assert stage.load(rows, NO_NAMES, files=np.zeros(len(data), np.uint8))
    assert rows["result"] == OK
    assert stage.load(rows, NO_NAMES, files=np.zeros(len(data), np.uint8)[:-1])
    assert rows["result"] == NO_MEMORY
    progress = np.array([0, 0, 8])
    at = progress.ctypes.data
    assert stage.load(rows, NO_NAMES, Progress(at, at + 8, at + 16, 8))
    assert not stage.load(rows, NO_NAMES, Progress(at, at + 8, at + 16, 7))  # no longer wanted
    os.close(descriptor)


def coded(ids: bytes, head: bytes = b"") -> bytes:
    """Return a small JPEG with components of these numbers."""
    planes = jp.ycc(textured(16, 16))
    return jp.encode([jp.Component(plane, ident) for plane, ident in zip(planes, ids, strict=True)], head=head)


ODD_EXIF = jp.segment(jp.APP1, b"Exif\0\0II*\0\xff\xff\xff\xff")


@pytest.mark.parametrize(
    ("data", "exif", "loaded", "prepared"),
    [
        (coded(b"\1\2\3"), True, OK, OK),
        (coded(b"abc"), True, OK, UNSUPPORTED),  # another decoder may treat it as RGB
        (split_scans(jpeg(textured(16, 16), progressive=True)).joined(0), True, OK, UNSUPPORTED),  # libjpeg smooths it
        (coded(b"\1\2\3", ODD_EXIF), False, OK, OK),
        (coded(b"\1\2\3", ODD_EXIF), True, UNSUPPORTED, UNSUPPORTED),
    ],
)
def test_files_that_other_decoders_may_read_differently_are_unsupported(
    tmp_path: Path, native: ctypes.CDLL, data: bytes, exif: bool, loaded: int, prepared: int
) -> None:
    (tmp_path / "cache").write_bytes(data)
    descriptor, stage = os.open(tmp_path / "cache", os.O_RDONLY), NativeStage(native, 10**8, apply_exif=exif)
    rows = np.zeros(1, ROW)
    rows["kind"], rows["fd"], rows["size"], rows["crc"] = STORED, descriptor, len(data), zlib.crc32(data)
    assert stage.load(rows, NO_NAMES)
    assert rows["result"] == loaded
    rows["window"] = (0, 0, 16, 16)
    assert stage.cut(rows, np.zeros(1, np.uint8))
    assert rows["result"] == prepared
    os.close(descriptor)
