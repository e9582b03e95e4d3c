"""Calls the native library with the rows of a batch: where its images are, and how their crops are drawn."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.pipelines.native.library import OK

# Kinds of stored bytes, explained in batch.h.
ELSEWHERE, FILE, STORED, STRIPS, PIXELS, MEMORY, ENCODED = range(7)
# The fields of pn_row in batch.h, in their order, by type.
_ROW_FIELDS = (
    ("<i8", "sample offset size file_size mtime_ns folder name at out"),
    ("<i4", "folder_bytes name_bytes fd width height row result out_width out_height"),
    ("(4,)<i4", "window place"),
    ("<u4", "head crc"),
    ("<u2", "segment_mcus strip_rows height_offset"),
    ("u1", "kind orientation mcu_width mcu_height flip turn repeats exif interpolation"),
)
ROW = np.dtype([(name, kind) for kind, names in _ROW_FIELDS for name in names.split()], align=True)
Rows = npt.NDArray[np.void]
# The fields of pn_crops in crops.h, and its kinds.
CROPS = np.dtype(
    [
        ("seed", "<u8"),
        *((name, "<f8", (2,)) for name in ("scale", "log_ratio", "ratio")),
        *((name, "<f8") for name in ("aspect", "fraction", "flip", "vertical_flip", "rotate90")),
        *((name, "<i8") for name in ("offset", "row_bytes")),
        *((name, "<u4") for name in ("epoch", "stream")),
        *((name, "<i4") for name in ("kind", "is_random", "width", "height", "interpolation")),
    ],
    align=True,
)
RANDOM_RESIZED, CENTRE, WHOLE = range(3)


class Crops:
    """Settings for drawing the crops of each view, and the position of its images in the batch's memory.

    Attributes:
        views: CROPS [views].
        address: address of their memory.
    """

    def __init__(self, views: npt.NDArray[np.void]) -> None:
        assert views.dtype == CROPS
        assert views.flags.c_contiguous
        self.views, self.address = views, views.ctypes.data

    def at(self, offsets: Sequence[int]) -> Crops:
        """Return the same for views whose images begin at `offsets`, in bytes."""
        views = self.views.copy()
        views["offset"] = offsets
        return Crops(views)


class Names(NamedTuple):
    """Data that rows point to: names of files, as bytes, and memory.

    Attributes:
        root: path of the folder, ending in a slash.
        folders: names of the folders below it, uint8, one after the other.
        names: names of the files in these, uint8, one after the other.
        kept: objects that own the memory of rows of kind ENCODED; they live as long as this one.
    """

    root: bytes
    folders: npt.NDArray[np.uint8]
    names: npt.NDArray[np.uint8]
    kept: object = None


NO_NAMES = Names(b"", np.zeros(1, np.uint8), np.zeros(1, np.uint8))


class Progress(NamedTuple):
    """Addresses (of int64) where the library reports progress and checks whether its work is still wanted.

    Attributes:
        sample: address of the index of the current sample.
        since_ns: address of the time at which work on it began.
        generation: address of the generation of work that is wanted.
        wanted: the generation of this batch.
    """

    sample: int
    since_ns: int
    generation: int
    wanted: int


_TASK_FIELDS: tuple[tuple[Any, str], ...] = (
    (ctypes.c_char_p, "root"),
    (ctypes.c_void_p, "folders names images files parts sample_now since_ns generation crops keys notes"),
    (ctypes.c_int64, "wanted max_pixels read_ns files_bytes parts_bytes images_bytes"),
    (ctypes.c_int32, "root_bytes apply_exif channels views note_bytes num_made"),
    (ctypes.c_uint8 * 4, "fill"),
)


class _Task(ctypes.Structure):
    """Mirror pn_task of batch.h."""

    _fields_ = tuple((name, kind) for kind, names in _TASK_FIELDS for name in names.split())


class NativeStage:
    """Make the pixels of batches with the native library; belongs to one thread, whose memory it reuses.

    Args:
        max_pixels: larger images are left to the Python path.
        apply_exif: turn images upright as EXIF says.
        channels: channels of the output images: 3, or 1 for grey levels.
        fill: red, green and blue of the area outside the crop in an output image.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        max_pixels: int,
        *,
        apply_exif: bool,
        channels: int = 3,
        fill: tuple[int | float, ...] = (0, 0, 0),
    ) -> None:
        assert library.pn_row_bytes() == ROW.itemsize
        assert library.pn_crops_bytes() == CROPS.itemsize
        assert library.pn_task_bytes() == ctypes.sizeof(_Task)
        self._library, self._worker = library, library.pn_worker_new()
        if not self._worker:
            raise MemoryError
        self._names: Names | None = None
        self._own = np.zeros(3, np.int64)  # receives progress if the caller does not want it
        at = self._own.ctypes.data
        self._unwatched = Progress(at, at + 8, at + 16, 0)
        self._task = _Task(max_pixels=max_pixels, apply_exif=apply_exif, channels=channels, fill=(*fill, 0))

    def __del__(self) -> None:
        if getattr(self, "_worker", None):
            self._library.pn_worker_free(self._worker)

    def load(
        self, rows: Rows, names: Names, progress: Progress | None = None, files: npt.NDArray[np.uint8] | None = None
    ) -> bool:
        """Read whole files, and set their images' `width`, `height` and `orientation`; False if the work was stopped.

        rows: ROW [n] as filled by a source; a `result` of 0 means that fill() or cut() can continue with the row. The
        files' bytes go to `files`, uint8, row["size"] of them from row["at"] on; by default to the stage's own memory.
        """
        self._begin(names, progress)
        if files is not None:
            self._task.files, self._task.files_bytes = files.ctypes.data, files.size
        return self._call(self._library.pn_load, rows)

    def _begin(self, names: Names, progress: Progress | None) -> None:
        task, watched = self._task, progress or self._unwatched
        task.files, task.files_bytes, task.images, task.read_ns = None, 0, None, 0
        if names is not self._names:
            self._names = names
            task.root, task.root_bytes = names.root, len(names.root)
            task.folders, task.names = names.folders.ctypes.data, names.names.ctypes.data
        task.sample_now, task.since_ns, task.generation, task.wanted = watched

    def plan(self, rows: Rows, crops: Crops, keys: npt.NDArray[np.int64] | None) -> None:
        """Draw `window`, `place`, `turn` and `flip` of each row with `result` 0, after load().

        crops: crops of the views; rows alternate between views. keys: numbers that the draws depend on, int64 [images];
        None for the images' samples. A row with another `result` afterwards is left to Python.
        """
        task = self._task
        task.crops, task.views = crops.address, len(crops.views)
        task.keys = None if keys is None else keys.ctypes.data
        self._call(self._library.pn_plan, rows)

    def make(
        self,
        rows: Rows,
        names: Names,
        crops: Crops,
        keys: npt.NDArray[np.int64] | None,
        images: npt.NDArray[np.uint8] | None,
        notes: npt.NDArray[np.void] | None,
        progress: Progress | None = None,
    ) -> int | None:
        """Do load(), plan() and fill() in one call; return how many images were made, None if the work was stopped.

        An image begins at `offset` + row * `row_bytes` of its view's crops in the memory `images`. Without `images` the
        crops are only decoded. notes: batch_row [batch], receives how each row was made. An image of several views is
        made with all of them, or not at all.
        """
        self._begin(names, progress)
        task = self._task
        task.crops, task.views, task.keys = crops.address, len(crops.views), None if keys is None else keys.ctypes.data
        task.images, task.images_bytes = (None, 0) if images is None else (images.ctypes.data, images.nbytes)
        task.notes, task.note_bytes = (None, 0) if notes is None else (notes.ctypes.data, notes.strides[0])
        return task.num_made if self._call(self._library.pn_make, rows) else None

    def fill(self, rows: Rows, images: npt.NDArray[np.uint8] | None) -> bool:
        """Draw the image of each row with `result` 0 into the memory `images`, uint8; False if stopped.

        rows: as load() left them, with `window` (in the upright image), `out`, `out_width`, `out_height`, `place`,
        `turn` and `flip` set. A row with a `result` other than 0 afterwards has undefined pixels. Consecutive rows with
        `repeats` set belong to one image, which is decoded once. Without `images` the crops are only decoded.
        """
        if images is not None:
            assert images.flags.c_contiguous
            image_bytes = rows["out_width"].astype(np.int64) * rows["out_height"] * self._task.channels
            assert (rows["out"] >= 0).all()
            assert (rows["out_width"] > 0).all()
            assert (rows["out"] + image_bytes <= images.nbytes).all()
        self._task.images = None if images is None else images.ctypes.data
        return self._call(self._library.pn_fill, rows)

    def cut(self, rows: Rows, parts: npt.NDArray[np.uint8]) -> bool:
        """Prepare each row with `result` 0 for another decoder, after load() with `files`; False if stopped.

        rows: as load() left them, with `window` set. Rows of kind FILE and STORED are only checked. For the others
        `parts`, uint8, receives row["size"] bytes from row["at"] on: for STRIPS a JPEG in which the window begins at
        row["window"], otherwise the window's pixels. A row with a `result` other than 0 afterwards is left to Python.
        """
        self._task.parts, self._task.parts_bytes = parts.ctypes.data, parts.size
        return self._call(self._library.pn_cut, rows)

    def resize(
        self, pixels: npt.NDArray[np.uint8], flip: bool, out: npt.NDArray[np.uint8], interpolation: int = 0
    ) -> None:
        """Resize pixels, uint8 [h, w, 3], to `out`, uint8 [height, width, 3], and mirror them if `flip`.

        interpolation: a number of INTERPOLATIONS.
        """
        assert pixels.strides[1:] == (3, 1)
        assert out.flags.c_contiguous
        height, width = pixels.shape[:2]
        memory = self._library.pn_resizing_memory(self._worker)
        (out_height, out_width), to, out_stride = out.shape[:2], out.ctypes.data, out.strides[0]
        options = out_width, out_height, flip, 1, interpolation, memory
        self._library.pn_resize(pixels.ctypes.data, pixels.strides[0], width, height, to, out_stride, *options)

    def _call(self, function: ctypes._NamedFuncPointer, rows: Rows) -> bool:
        assert rows.dtype == ROW
        assert rows.flags.c_contiguous
        result = function(self._worker, ctypes.byref(self._task), rows.ctypes.data, len(rows))
        return bool(result == OK)

    @property
    def read_s(self) -> float:
        """Seconds spent reading since load() was called."""
        return float(self._task.read_ns) / 1e9


def upright_sizes(rows: Rows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return widths and heights (int64 [n], pixels) of the upright images, after load()."""
    widths, heights = rows["width"].astype(np.int64), rows["height"].astype(np.int64)
    turned = rows["orientation"] >= 5
    return np.where(turned, heights, widths), np.where(turned, widths, heights)
