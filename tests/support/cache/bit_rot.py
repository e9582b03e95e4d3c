"""Damage to a cache file, and its outcome for readers: reported, harmless or silent."""

from __future__ import annotations

import contextlib
import os
import random
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import native_tests
import numpy as np
from jpeg_samples import stoppable, unstoppable
from odd_images import corpus, encoded, scene
from photo_folder import photo, write_folder

from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.cache_build.hdf5_frame import PAYLOAD_OFFSET
from penstock.loaders.cache_build.verify import find_damage
from penstock.loaders.data.cache.format import PIXELS, STRIPS, Encoding, Record
from penstock.loaders.data.cache.hdf5_cache import Hdf5Cache, open_cache
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Window
from penstock.pipelines.native.rows import ROW, NativeStage
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.spec import ImagePipeline

ENCODINGS = {"jpeg": Encoding(), "raw": Encoding(kind="raw"), "lossy": Encoding(resize=40, quality=80)}
# Encodings served through two paths that must agree.
SERVED_ENCODINGS = {
    "lossless": Encoding(),
    "lossy": Encoding(resize=64, quality=80),
    "raw": Encoding(kind="raw"),
    "raw, small": Encoding(kind="raw", resize=48),
}
# Outcomes of a read: as before the damage; refused as damage; refused for another reason; other pixels, not reported.
SAME, REPORTED, OTHER_ERROR, SILENT = "harmless", "reported", "refused for another reason", "silent"
_NUM_WINDOWS = 3


def write_odd_folder(root: Path) -> Path:
    """Write images of all kinds: every sampling, restart markers, several scans, other formats, broken ones."""
    photos = {**stoppable(), **unstoppable(), "photo": photo(2), "large": photo(5, large=True)}
    files = {f"{name}.jpg": data for name, data in photos.items()}
    pixels = scene(45, 67)
    files |= {f"other.{fmt.lower()}": encoded(pixels, fmt) for fmt in ("PNG", "WEBP", "BMP", "GIF")}
    for odd in corpus():
        if (
            any(word in odd.name for word in ("cut_50", "cmyk", "exif", "12bit", "arithmetic"))
            and len(odd.data) < 50000
        ):
            files[f"{odd.name}.jpg"] = odd.data
    files["empty.jpg"] = b""
    for number, (name, data) in enumerate(sorted(files.items())):
        folder = root / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return root


def build_odd_cache(root: Path, path: Path, encoding: Encoding) -> Path:
    """Build a cache of that folder."""
    build_cache(ImageFolder(root), path, encoding, workers=0)
    return path


def open_cache_of_odd_and_sound(folder: Path, encoding: Encoding) -> Hdf5Cache:
    """Build a cache in `folder` of the odd images and 30 sound photos."""
    root = write_odd_folder(folder / "odd")
    write_folder(root, 30)
    return open_cache(build_odd_cache(root, folder / "odd.h5", encoding))


def open_damaged_cache(root: Path, path: Path) -> Hdf5Cache:
    """Build a cache of the folder `root`; flip one bit in the stored bytes of every third image."""
    cache = open_cache(build_odd_cache(root, path, Encoding()))
    _, start = cache.files[0].payload
    draw = np.random.default_rng(3)
    with open(path, "r+b") as file:
        for record in cache.records[::3].tolist():
            at = start + int(record[0]) + int(draw.integers(record[1]))
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << int(draw.integers(8))]))
    return cache


class Reader:
    """Reads images like the loaders, for use by one thread."""

    def __init__(self, cache: Hdf5Cache) -> None:
        self.cache, self._decoder = cache, ImageDecoder(ImagePipeline())
        self._stage = NativeStage(native_tests.native(), 2**62, apply_exif=False)

    def whole(self, index: int) -> bytes:
        """Return the pixels of an image, or the code of its error."""
        try:
            data = self.cache.read(index)
            return data.tobytes() if isinstance(data, np.ndarray) else self._decoder.full(data).tobytes()
        except LoaderError as error:
            return error.code.encode()

    def window(self, index: int, window: Window) -> bytes:
        """Return a window's pixels by the native library, or Python's result for an image that the library refuses."""
        rows, (x, y, w, h) = np.zeros(1, ROW), window
        self._stage.load(rows, self.cache.locate(np.array([index]), rows))
        rows["window"], rows["place"], rows["out_width"], rows["out_height"] = window, (0, 0, w, h), w, h
        pixels = np.zeros((h, w, 3), np.uint8)
        self._stage.fill(rows, pixels)
        if rows["result"][0] == 0:
            return pixels.tobytes()
        try:
            data = self.cache.read(index)
            whole = data if isinstance(data, np.ndarray) else self._decoder.full(data)
            return whole[y : y + h, x : x + w].tobytes()
        except LoaderError as error:
            return error.code.encode()

    def everything(self) -> tuple[bytes, ...]:
        """Return everything that can be read: labels, names, classes, fingerprint, about, pixels."""
        cache, indices = self.cache, np.arange(len(self.cache), dtype=np.int64)
        names = [cache.name(index) for index in indices.tolist()]
        facts = (cache.labels(indices).tolist(), names, cache.classes, cache.fingerprint, cache.about)
        return (repr(facts).encode(), *(self.whole(index) for index in indices.tolist()))


def strip_windows(record: Record) -> Iterator[Window]:
    """Yield windows of one strip each, as wide as the image; together they cover it."""
    rows = record.strip_rows * (record.mcu_height if record.kind == STRIPS else 1) or record.height
    for top in range(0, record.height, rows):
        yield 0, top, record.width, min(rows, record.height - top)


def random_windows(record: Record, draw: random.Random) -> list[Window]:
    """Return windows of random places and sizes."""
    found = []
    for _ in range(_NUM_WINDOWS):
        width, height = draw.randint(1, record.width), draw.randint(1, record.height)
        found.append((draw.randint(0, record.width - width), draw.randint(0, record.height - height), width, height))
    return found


def outcome_of_read(before: bytes, after: bytes) -> str:
    """Return the outcome of a read."""
    if before == after:
        return SAME
    if after == b"E-CACHE":
        return REPORTED
    return OTHER_ERROR if after[:2] == b"E-" else SILENT


class Flipper:
    """Flips single bits of a cache file, and restores each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = Reader(open_cache(path))
        cache = self._reader.cache
        self.records = [Record._make(record.item()) for record in cache.records]
        self._ends = [record.offset + record.length for record in self.records]
        self.payload = range(PAYLOAD_OFFSET, PAYLOAD_OFFSET + self._ends[-1])
        self._fd = os.open(path, os.O_RDWR)
        weakref.finalize(self, os.close, self._fd)
        self._num_classes = len(cache.classes)
        self._everything = self._reader.everything()
        self._known: dict[tuple[int, Window], bytes] = {}
        self._whole: dict[int, bytes] = {}

    def payload_flips(self, count: int, draw: random.Random) -> Counter[str]:
        """Return outcome -> number for `count` bit flips in stored images; a check of the file must find each one."""
        outcomes: Counter[str] = Counter()
        for _ in range(count):
            index, at = self._place(draw)
            record = self.records[index]
            windows = random_windows(record, draw) if record.width else []
            if record.kind in (STRIPS, PIXELS):
                windows += strip_windows(record)
            for window in windows:
                if (index, window) not in self._known:
                    self._known[index, window] = self._reader.window(index, window)
            if index not in self._whole:
                self._whole[index] = self._reader.whole(index)
            with self.flipped(at, draw.randrange(8)):
                seen = [outcome_of_read(self._whole[index], self._reader.whole(index))]
                seen += [
                    outcome_of_read(self._known[index, window], self._reader.window(index, window))
                    for window in windows
                ]
                found = find_damage(record, self._reader.cache.stored(index), self._num_classes)
            assert "CRC" in found, (index, at, found)
            assert seen[0] == REPORTED, (index, at, seen)  # the whole image was read
            # Windows without the byte are unchanged; one of the windows that cover the image contains it.
            assert REPORTED in seen[1:] or not windows, (index, at, seen)
            outcomes[worst_of(seen)] += 1
        return outcomes

    def _place(self, draw: random.Random) -> tuple[int, int]:
        """Return (image, position of a byte in the file), drawn per byte, per image or per head, each as often."""
        index = draw.choice([index for index, record in enumerate(self.records) if record.length])
        record, how = self.records[index], draw.randrange(3)
        if how == 0:
            at = draw.choice(self.payload)
            return int(np.searchsorted(self._ends, at - PAYLOAD_OFFSET, side="right")), at
        size = record.head if how == 1 and record.head else record.length
        return index, PAYLOAD_OFFSET + record.offset + draw.randrange(size)

    def table_flips(self, count: int, draw: random.Random) -> Counter[str]:
        """Return outcome -> number, for `count` bit flips outside the stored images; the file is opened after each."""
        places = [place for place in range(os.fstat(self._fd).st_size) if place not in self.payload]
        outcomes: Counter[str] = Counter()
        for _ in range(count):
            at, bit = draw.choice(places), draw.randrange(8)
            with self.flipped(at, bit):
                outcome = self.outcome()
            assert outcome in (SAME, REPORTED), (at, bit, outcome)
            outcomes[outcome] += 1
        return outcomes

    @contextlib.contextmanager
    def flipped(self, at: int, bit: int) -> Iterator[None]:
        """Flip a bit of the file inside the `with` block."""
        (byte,) = os.pread(self._fd, 1, at)
        os.pwrite(self._fd, bytes([byte ^ 1 << bit]), at)
        try:
            yield
        finally:
            os.pwrite(self._fd, bytes([byte]), at)

    def outcome(self) -> str:
        """Open and read the whole damaged file; return the outcome."""
        return outcome_of(self.path, self._everything)

    @property
    def everything(self) -> tuple[bytes, ...]:
        """The result of Reader.everything before any damage."""
        return self._everything


def outcome_of(path: Path, everything: tuple[bytes, ...]) -> str:
    """Return the outcome of reading a file; `everything`: its content before the damage."""
    try:
        after = Reader(open_cache(path)).everything()
    except LoaderError as error:
        return REPORTED if error.code == "E-CACHE" else OTHER_ERROR
    if len(after) != len(everything):
        return SILENT
    return worst_of([outcome_of_read(one, other) for one, other in zip(everything, after, strict=True)])


def worst_of(outcomes: list[str]) -> str:
    """Return the worst outcome of several reads."""
    return max(outcomes, key=(SAME, REPORTED, OTHER_ERROR, SILENT).index)
