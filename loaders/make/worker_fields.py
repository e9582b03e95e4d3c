"""WorkerFields: makes the masks and image targets of rows with finished images, and checks their boxes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import Source, field_kinds_of, has_fields, has_moving_fields
from penstock.loaders.data.sources.source_faults import call_source, naming_method
from penstock.loaders.make.layout import Slot
from penstock.loaders.make.native_targets import NATIVE_ROWS, NativeTargets, native_targets
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.fields.field_kinds import PICTURES, FieldKind, of_kind, pictures_of
from penstock.pipelines.fields.masks import decode_mask
from penstock.pipelines.fields.pictures import Picture, Values, crop_array, place_window, scale_window
from penstock.pipelines.fields.placement import corners_of, find_other_sizes, find_outside
from penstock.pipelines.native.rows import Progress
from penstock.pipelines.plan.augmentations import AugmentPlan
from penstock.pipelines.plan.moves import move_picture
from penstock.pipelines.sample.orientation import swaps_sides
from penstock.pipelines.sample.patches import view_image
from penstock.pipelines.sample.target_decoder import TargetDecoder
from penstock.pipelines.spec import ImagePipeline

Errors = dict[int, LoaderError]  # by row
Files = dict[int, bytes | Values]  # by row
_WATCHED = lambda sample: None  # noqa: E731


class WorkerFields:
    """The part of a source's fields that workers make, for use in one thread.

    Args:
        pipelines: the pipeline of each view.
        decoder: name of the JPEG decoder for image targets.
        on_repaired: policy for a target that libjpeg repairs; see BadSamplePolicy.
        in_patches: store each picture as a whole at the beginning of its row, like patches and images of own sizes.

    Attributes:
        moves: whether some fields follow the crop of their image.
        has_work: whether there is anything to make or to check.
        repaired: row -> the error of a target that libjpeg has repaired and that is served, after the latest fill().
    """

    def __init__(
        self,
        source: Source,
        pipelines: Sequence[ImagePipeline],
        *,
        decoder: str = "auto",
        on_repaired: str = "ignore",
        in_patches: bool = False,
    ) -> None:
        self._in_patches, exif = in_patches, pipelines[0].exif
        self._moves_pixels = [pipeline.augment.moves_pixels for pipeline in pipelines]
        self._source = source if has_fields(source) else None
        kinds = field_kinds_of(source)
        self._pictures, self._boxes = pictures_of(kinds), of_kind(kinds, "boxes")
        self._raises_repaired = on_repaired != "count"
        judge = on_repaired != "ignore"
        targets = of_kind(kinds, "image").items()
        self._decoders = {name: TargetDecoder(kind, pipelines[0], decoder, judge=judge) for name, kind in targets}
        native = {name: native_targets(kind, pipelines[0], decoder) for name, kind in targets if not in_patches}
        self._native: Mapping[str, NativeTargets] = {name: each for name, each in native.items() if each is not None}
        self.repaired: Errors = {}
        self.moves = has_moving_fields(source)
        self.has_work = bool(self._pictures or self._boxes)
        self._exif, self._other_exif = exif, "ignore" if exif == "apply" else "apply"

    def fill(
        self,
        rows: list[int],
        crops: Slot,
        augments: Sequence[AugmentPlan | None],
        first: int,
        working_on: Callable[[int], None] = _WATCHED,
        progress: Progress | None = None,
    ) -> Errors:
        """Write the pictures of `rows` of `crops`, and return the errors in samples' fields by row.

        augments: augmentations of the batch stage for each view; `crops` begins at their row `first`.
        working_on, progress: as in BatchPart.
        """
        self.repaired = {}
        if not rows:
            return {}
        wrong = self._check_boxes(rows, crops.rows[rows]) if self._boxes else {}
        for name, kind in self._pictures.items():
            native = self._native.get(name)
            at_once = 1 if native is None else NATIVE_ROWS  # their files are in memory together
            left = [row for row in rows if row not in wrong]
            for start in range(0, len(left), at_once):
                files = self._read_files(name, left[start : start + at_once], crops, wrong, working_on)
                done = native.fill(name, files, crops, working_on, progress) if native is not None else set()
                for row, file in files.items():
                    try:
                        if row not in done:
                            self._fill_picture(name, file, crops, row)
                    except LoaderError as error:
                        wrong[row] = error.locate(path=self._find_file(name, int(crops.rows["index"][row])))
                        continue
                    for view, plan, moves_pixels in zip(crops.extras[name], augments, self._moves_pixels, strict=True):
                        if plan is not None and moves_pixels:
                            view[row] = _move(kind, view[row], plan, first + row)
        return wrong

    def _read_files(
        self, name: str, rows: list[int], crops: Slot, wrong: Errors, working_on: Callable[[int], None]
    ) -> Files:
        """Return the pictures of rows, files or arrays; add errors to `wrong`."""
        assert self._source is not None
        files: Files = {}
        for row in rows:
            sample = int(crops.rows["index"][row])
            working_on(sample)
            try:
                files[row] = call_source(self._source.mask, name, sample)
            except LoaderError as error:
                wrong[row] = error.locate(path=self._find_file(name, sample))
        return files

    def _find_file(self, name: str, index: int) -> bytes | None:
        """Return the path of the file with a field of a sample, if the source knows it."""
        find = getattr(self._source, "field_path", None)
        return None if find is None else find(name, index)

    def _fill_picture(self, name: str, file: bytes | Values, crops: Slot, row: int) -> None:
        kind, decoder, about = self._pictures[name], self._decoders.get(name), crops.rows[row]
        views = [view[row] for view in crops.extras[name]]
        picture = _open_mask(name, kind, file) if decoder is None else decoder.open(file)
        self._check_size(name, kind, picture, about)
        drawn = (np.reshape(about[column], (len(views), -1)).tolist() for column in ("window", "place", "turn", "flip"))
        windows, places, turns, flips = drawn
        scaled = [scale_window(tuple(window), kind.scale) for window in windows]
        left, top = min(x for x, _, _, _ in scaled), min(y for _, y, _, _ in scaled)
        right, bottom = max(x + w for x, _, w, _ in scaled), max(y + h for _, y, _, h in scaled)
        values = picture.crop((left, top, right - left, bottom - top))
        if decoder is not None and decoder.repair:
            self._note_repair(row, f"field {name!r}: libjpeg repaired the target: {decoder.repair}")
        for out, (x, y, w, h), place, (turn,), (flip,) in zip(views, scaled, places, turns, flips, strict=True):
            at = scale_window(tuple(place), kind.scale)
            if self._in_patches:
                whole = view_image(out, at[2], at[3], kind.channels)
                out = whole[..., 0] if kind.target is None else whole
            filter_of = "nearest" if kind.target is None else kind.target.interpolation
            crop = crop_array(values, (x - left, y - top, w, h))
            place_window(crop, at, out, turn, flip, kind.outside, filter_of, kind.missing)

    def _note_repair(self, row: int, cause: str) -> None:
        error = LoaderError("E-REPAIRED", cause)
        if self._raises_repaired:
            raise error
        self.repaired[row] = error

    def _check_size(self, name: str, kind: FieldKind, picture: Picture, about: np.void) -> None:
        """Raise LoaderError for a picture that does not have the size of its image, times the field's scale."""
        width, height = about["size"].tolist()
        is_now, wanted = (picture.width, picture.height), (width * kind.scale, height * kind.scale)
        if is_now == wanted:
            return
        what, size = PICTURES[kind.kind], "x".join(map(str, is_now))
        cause = f"field {name!r}: the {what} has {size} pixels, but its image has {width}x{height}"
        fix = f"give each image a {what} of its size, or pass on_bad_sample='replace'"
        if kind.target is not None:
            fix = f"give each image a {what} of {kind.scale} times its sides, or pass on_bad_sample='replace'"
            cause += f", and scale={kind.scale} needs {wanted[0]}x{wanted[1]}"
            factors = {have / need for have, need in zip(is_now, (width, height), strict=True)}
            factor = min(factors)
            if len(factors) == 1 and factor == int(factor):
                fix = f"pass ImageTargets(..., scale={int(factor)})"
        if is_now == wanted[::-1] and width != height and swaps_sides(int(about["exif"])):
            fix = f"pass ImagePipeline(exif={self._other_exif!r}), or give each image a {what} of its size"
        raise LoaderError("E-DATASET", cause, fix=fix)

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


def _open_mask(name: str, kind: FieldKind, file: bytes | Values) -> Picture:
    """Return a mask. Raises LoaderError for values that do not fit the field's type."""
    mask = decode_mask(file)
    if mask.dtype != kind.dtype:
        low, high, held = int(mask.min(initial=0)), int(mask.max(initial=0)), np.iinfo(kind.dtype)
        if low < held.min or high > held.max:
            cause = f"field {name!r}: the mask has values from {low} to {high}, but {kind.dtype} has {held.min} to "
            raise LoaderError("E-DATASET", f"{cause}{held.max}", fix="pass Masks(..., dtype='int32')")
    height, width = mask.shape
    return Picture(width, height, partial(crop_array, mask))


def _move(kind: FieldKind, values: Values, plan: AugmentPlan, row: int) -> Values:
    """Return a picture after the moves of the batch stage."""
    is_smooth = kind.target is not None and kind.target.interpolation != "nearest" and kind.missing is None
    return move_picture(values, plan, row, kind.outside, scale=kind.scale, is_smooth=is_smooth)
