"""WorkerFields: makes the masks of rows with finished images, and checks their boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import Source, field_kinds_of, has_fields, has_moving_fields
from penstock.loaders.data.sources.source_faults import call_source, naming_method
from penstock.loaders.make.layout import Slot
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.fields.field_kinds import of_kind
from penstock.pipelines.fields.masks import decode_mask, window_of_mask
from penstock.pipelines.fields.placement import corners_of, find_other_sizes, find_outside
from penstock.pipelines.plan.augmentations import AugmentPlan
from penstock.pipelines.plan.moves import move_mask
from penstock.pipelines.sample.orientation import swaps_sides
from penstock.pipelines.sample.patches import view_image
from penstock.pipelines.spec import ImagePipeline


class WorkerFields:
    """The part of a source's fields that workers make, for use in one thread.

    Args:
        pipelines: the pipeline of each view.
        in_patches: store each mask as a whole image at the beginning of its row, in the memory for patches.

    Attributes:
        moves: whether some fields follow the crop of their image.
        has_work: whether there is anything to make or to check.
    """

    def __init__(self, source: Source, pipelines: Sequence[ImagePipeline], *, in_patches: bool = False) -> None:
        self._in_patches, exif = in_patches, pipelines[0].exif
        self._moves_pixels = [pipeline.augment.moves_pixels for pipeline in pipelines]
        self._source = source if has_fields(source) else None
        kinds = {} if self._source is None else self._source.field_kinds
        self._masks = of_kind(kinds, "mask")
        self._boxes = of_kind(kinds, "boxes")
        self.moves = has_moving_fields(source)
        self.has_work = bool(self._masks or self._boxes)
        self._exif, self._other_exif = exif, "ignore" if exif == "apply" else "apply"

    def fill(
        self,
        rows: list[int],
        crops: Slot,
        augments: Sequence[AugmentPlan | None],
        first: int,
        working_on: Callable[[int], None] = lambda sample: None,
    ) -> dict[int, LoaderError]:
        """Write the masks of `rows` of `crops`, and return the errors in samples' fields by row.

        augments: augmentations of the batch stage for each view; `crops` begins at their row `first`.
        working_on: called with each sample before its masks are read.
        """
        if not rows:
            return {}
        about, masks = crops.rows, crops.extras
        wrong = self._check_boxes(rows, about[rows]) if self._boxes else {}
        for row in rows if self._masks else ():
            working_on(int(about["index"][row]))
            try:
                for name in self._masks:
                    views = [view[row] for view in masks[name]]
                    try:
                        self._fill_mask(name, about[row], views)
                    except LoaderError as error:
                        raise error.locate(path=self._find_file(name, int(about["index"][row]))) from error
                    for out, plan, moves_pixels in zip(views, augments, self._moves_pixels, strict=True):
                        if plan is not None and moves_pixels:
                            out[...] = move_mask(out, plan, first + row, self._masks[name].ignore_index)
            except LoaderError as error:
                wrong[row] = error
        return wrong

    def _find_file(self, name: str, index: int) -> bytes | None:
        """Return the path of the file with a field of a sample, if the source knows it."""
        find = getattr(self._source, "field_path", None)
        return None if find is None else find(name, index)

    def _fill_mask(self, name: str, about: np.void, views: list[npt.NDArray[Any]]) -> None:
        assert self._source is not None
        kind = self._masks[name]
        mask = decode_mask(call_source(self._source.mask, name, int(about["index"])))
        width, height = about["size"].tolist()
        if mask.shape != (height, width):
            size = "x".join(map(str, mask.shape[::-1]))
            cause = f"field {name!r}: the mask has {size} pixels, but its image has {width}x{height}"
            fix = "give each image a mask of its size, or pass on_bad_sample='replace'"
            if mask.shape == (width, height) and width != height and swaps_sides(int(about["exif"])):
                fix = f"pass ImagePipeline(exif={self._other_exif!r}), or give each image a mask of its size"
            raise LoaderError("E-DATASET", cause, fix=fix)
        if mask.dtype != views[0].dtype:
            low, high, held = int(mask.min(initial=0)), int(mask.max(initial=0)), np.iinfo(views[0].dtype)
            if low < held.min or high > held.max:
                cause = f"field {name!r}: the mask has values from {low} to {high}, but {kind.dtype} has {held.min} to "
                raise LoaderError("E-DATASET", f"{cause}{held.max}", fix="pass Masks(..., dtype='int32')")
        drawn = (np.reshape(about[column], (len(views), -1)).tolist() for column in ("window", "place", "turn", "flip"))
        for out, window, place, (turn,), (flip,) in zip(views, *drawn, strict=True):
            out = view_image(out, place[2], place[3], 1)[..., 0] if self._in_patches else out
            window_of_mask(mask, tuple(window), tuple(place), out.shape, turn, flip, kind.ignore_index, out)

    def _check_boxes(self, rows: list[int], about: npt.NDArray[np.void]) -> dict[int, LoaderError]:
        assert self._source is not None
        with naming_method("fields()"):
            fields = self._source.fields(about["index"].astype(np.int64))
            values = {name: fields[name].checked(len(rows)) for name in self._boxes}
        wrong: dict[int, LoaderError] = {}
        for name, kind in self._boxes.items():
            boxes = values[name]
            corners, of = corners_of(boxes, kind, about["size"]), boxes.rows
            for box in find_outside(corners, of, about["size"]).tolist():
                width, height = about["size"][of[box]].tolist()
                corner = [round(value, 2) for value in corners[box].tolist()]
                cause = f"field {name!r}: box {corner} extends beyond its image of {width}x{height} pixels"
                fix = "use left, top, right, bottom in pixels of the image as it is read, or on_bad_sample='replace'"
                if kind.relative:
                    fix = "use centre and sides as fractions of the image, from 0 to 1, or on_bad_sample='replace'"
                row = int(of[box])
                path = self._find_file(name, int(about["index"][row]))
                wrong[rows[row]] = LoaderError("E-DATASET", cause, fix=fix, path=path)
            for box in find_other_sizes(boxes, about["size"]).tolist():
                row = int(of[box])
                wrong[rows[row]] = self._other_size(name, boxes.parts[2][box].tolist(), about[row])
        return wrong

    def _other_size(self, name: str, expected: list[int], about: np.void) -> LoaderError:
        """Return the error for an image of another size than in its annotation, `expected` (width, height)."""
        is_now = about["size"].tolist()
        annotated, read = (f"{width}x{height}" for width, height in (expected, is_now))
        done = "applied" if self._exif == "apply" else "ignored"
        cause = (
            f"field {name!r}: annotated at {annotated} pixels, but the image has {read} with EXIF orientation {done}"
        )
        fix = "scale the annotations to the images as they are now, or pass the images that were annotated"
        if expected == is_now[::-1] and swaps_sides(int(about["exif"])):
            fix = f"pass ImagePipeline(exif={self._other_exif!r}), which matches the annotations"
        return LoaderError("E-DATASET", cause, fix=fix)


def mask_types(source: Source) -> dict[str, str]:
    """Return the dtype of each mask of `source` by name."""
    kinds = field_kinds_of(source)
    return {name: np.dtype(kind.dtype).str for name, kind in of_kind(kinds, "mask").items()}
