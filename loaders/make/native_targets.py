"""NativeTargets: the native library decodes and resizes image targets that are ordinary JPEGs, as it does images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import numpy as np

from penstock.loaders.make.layout import Slot
from penstock.loaders.make.native_rows import NATIVE_DECODERS
from penstock.pipelines.fields.field_kinds import FieldKind, TargetRules
from penstock.pipelines.fields.pictures import Values
from penstock.pipelines.image_types import INTERPOLATIONS, Interpolation
from penstock.pipelines.jpeg.header import SOI
from penstock.pipelines.native.library import native_library
from penstock.pipelines.native.rows import ENCODED, NO_NAMES, ROW, NativeStage, Progress, Rows, upright_sizes
from penstock.pipelines.spec import ImagePipeline

NATIVE_ROWS = 16  # rows per call, whose files are in memory together


class NativeTargets:
    """Makes the targets of one field in one thread; `stage` has their fill colour."""

    def __init__(self, stage: NativeStage, rules: TargetRules) -> None:
        self._stage, self._scale = stage, rules.scale
        self._interpolation = INTERPOLATIONS.index(cast(Interpolation, rules.interpolation))

    def fill(
        self,
        name: str,
        files: Mapping[int, bytes | Values],
        crops: Slot,
        working_on: Callable[[int], None],
        progress: Progress | None,
    ) -> set[int]:
        """Write the targets of the rows of `files` that the library supports to `crops`, and return these rows."""
        data = {row: file for row, file in files.items() if isinstance(file, bytes) and file.startswith(SOI)}
        if not data:
            return set()
        num_views, numbers = crops.layout.num_views, np.array(list(data))
        rows = np.zeros(len(data), ROW)
        rows["sample"], rows["row"], rows["kind"] = crops.rows["index"][numbers], numbers, ENCODED
        rows["size"] = list(map(len, data.values()))
        rows["offset"] = [
            np.frombuffer(file, np.uint8).ctypes.data for file in data.values()
        ]  # `data` keeps the memory
        rows = np.repeat(rows, num_views)
        rows["repeats"] = np.arange(len(rows)) % num_views > 0
        if not self._stage.load(rows, NO_NAMES, progress):
            working_on(int(rows["sample"][0]))  # raises, because the batch is not wanted
            return set()
        rows = self._place(name, rows, crops)
        if len(rows) and not self._stage.fill(rows, crops.memory):
            working_on(int(rows["sample"][0]))
            return set()
        made = rows.reshape(-1, num_views)
        return set(made["row"][(made["result"] == 0).all(1), 0].tolist())

    def _place(self, name: str, rows: Rows, crops: Slot) -> Rows:
        """Return the loaded rows with the size of their image, times the scale, with their windows and places."""
        about, scale, num_views = crops.rows[rows["row"]], self._scale, crops.layout.num_views
        expected = about["size"].astype(np.int64) * scale
        rows = rows[(rows["result"] == 0) & (np.stack(upright_sizes(rows), 1) == expected).all(1)]
        first = crops.layout.first_extra(name)
        for view, part in enumerate(crops.layout.parts[first : first + num_views]):
            own = rows[view::num_views]
            drawn = crops.rows[own["row"]]
            for column in ("window", "place", "turn", "flip"):
                values = drawn[column] if num_views == 1 else drawn[column][:, view]
                own[column] = values * scale if column in ("window", "place") else values
            own["interpolation"] = self._interpolation
            own["out_height"], own["out_width"] = part.shape[:2]
            own["out"] = crops.offsets[first + view] + own["row"].astype(np.int64) * part.row_bytes
        return rows


def native_targets(kind: FieldKind, pipeline: ImagePipeline, decoder: str) -> NativeTargets | None:
    """Return a NativeTargets for a field; None if the library is not built or does not support such targets."""
    library, rules = native_library(), kind.target
    if library is None or rules is None or decoder not in NATIVE_DECODERS:
        return None
    if (kind.dtype, rules.channels, rules.missing) != ("uint8", 3, None):
        return None
    fill, is_upright = tuple(map(int, rules.fill)), pipeline.exif == "apply"
    return NativeTargets(NativeStage(library, pipeline.max_pixels, apply_exif=is_upright, fill=fill), rules)
