"""TransformStep: the user's transforms make the rows of a slot from crops."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import FieldSource, has_fields
from penstock.loaders.data.sources.source_faults import name_sample, naming_method
from penstock.loaders.make.batch_part import BatchPart
from penstock.loaders.make.batch_planner import BatchPlanner, Content
from penstock.loaders.make.engine_contract import Placed
from penstock.loaders.make.finishing import look_up_fields, place_fields
from penstock.loaders.make.layout import Slot, whole_layout
from penstock.loaders.make.own.compose_fields import RowFields
from penstock.loaders.make.own.global_draws import (
    is_drawing,
    own_draws,
    read_random_state,
    seed_generators,
    shared_draws,
)
from penstock.loaders.make.own_transform import OwnTransform, draw_words
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.fields.field_kinds import pictures_of
from penstock.pipelines.fields.placement import STILL
from penstock.pipelines.fields.ragged import Ragged, take_rows
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.plan.crops import BatchPlan

DRAWS_IN_THREADS = (
    "transform draws from the global random state, so only one thread can call it at a time, and its results differ "
    "between runs if other code draws at the same time: define it in a module, to use worker processes, or draw "
    "from a parameter named generator"
)
Make = Callable[[int, bool], None]  # (row, whether it may be made again)


class TransformStep:
    """Run transforms on the crops of a batch, in one thread. It keeps that thread's memory for crops.

    A transform's draws from the global random state depend only on the sample. In a worker process and in the
    consumer that state is seeded for each call. Threads share it with the training, so they do not seed it until
    they detect that calls change it: from then on they call the transform one at a time, seeded.
    """

    def __init__(self, planner: BatchPlanner) -> None:
        self._planner = planner
        self._crops = np.empty(0, np.uint8)

    def crops_of(self, slot: Slot, content: Content, whole: tuple[int, int] | None = None) -> Slot:
        """Return memory for the crops of the rows of `slot`; `whole` is the (height, width) of whole images."""
        layout = content.plan.layout._replace(batch_size=len(slot.rows))
        if whole is not None:
            layout = whole_layout(layout, self._planner.whole_views, whole, self._planner.pictures)
        if self._crops.nbytes < layout.num_bytes:
            self._crops = np.empty(layout.num_bytes, np.uint8)
        return Slot(layout, self._crops, slot.rows)

    def __call__(self, batch: BatchPart) -> None:
        """Make the images of the slot from the crops, copy the other arrays, zero the padding. Raises LoaderError."""
        for name, made in batch.crops.extras.items():
            for array, crop in zip(batch.slot.extras[name], made, strict=True):
                if array.shape == crop.shape:  # those of a whole image come from its transform
                    array[...] = crop
        batch.moved = tuple(self._make_view(batch, view, own) for view, own in enumerate(self._planner.transforms))

    def _make_view(self, batch: BatchPart, view: int, own: OwnTransform | None) -> Placed | None:
        """Make the images of a view; return the fields that `own` has moved with them, None without fields."""
        crops, images, index = batch.crops.images[view], batch.slot.images[view], batch.slot.rows["index"]
        if own is None:
            images[...] = crops
            return None
        images[index < 0] = 0
        numbers = index.astype(np.int64) if batch.keys is None else batch.keys
        words = draw_words(self._planner.schedule.seed, batch.cursor.epoch, numbers, view)
        fields, source = None, self._planner.source
        if own.fields is not None:
            assert has_fields(source)
            fields = _MovedRows(source, batch.crops, batch.slot, view)

        def make(row: int, again: bool) -> None:
            sample, crop = int(index[row]), crops[row].copy() if again else crops[row]
            batch.working_on(sample)
            try:
                images[row], moved = own(crop, words[row], None if fields is None else fields.of_row(row))
            except LoaderError as error:
                where = {"sample": sample, "path": name_sample(source, sample) or None}
                raise error.locate(**where) from error.__cause__
            if fields is not None and moved is not None:
                fields.take(row, moved)

        _run(own, np.flatnonzero(index >= 0).tolist(), make, words)
        return None if fields is None else fields.join()


def _run(own: OwnTransform, rows: list[int], make: Make, words: npt.NDArray[np.uint64]) -> None:
    """Call `make` for each of `rows`, so that the draws of `own` depend only on the row's `words`."""
    if threading.current_thread() is not threading.main_thread() and not own.uses_global_state:
        if _run_undrawn(rows, make):
            return
        if not own.uses_global_state:
            own.uses_global_state = True
            warn_user(DRAWS_IN_THREADS)
    with own_draws():
        for row in rows:
            seed_generators(words[row])
            make(row, False)


def _run_undrawn(rows: list[int], make: Make) -> bool:
    """Call `make` for each of `rows`, and return whether none of the calls draws from the global random state.

    If the state has changed meanwhile, each call is repeated until the state does not change: then another thread has
    drawn, such as the training.
    """
    failure = None
    with shared_draws():
        before = read_random_state()
    for number, row in enumerate(rows):
        try:
            with shared_draws():
                make(row, True)
        except LoaderError as error:  # its draws may have caused it
            failure, rows = error, rows[: number + 1]
            break
    with shared_draws():
        changed = read_random_state() != before
    if changed and any(is_drawing(partial(_make_again, make, row)) for row in rows):
        return False
    if failure is not None:
        raise failure
    return True


def _make_again(make: Make, row: int) -> None:
    with shared_draws(), contextlib.suppress(LoaderError):
        make(row, True)


class _MovedRows:
    """The masks, image targets, boxes and keypoints of the rows of one view.

    Args:
        crops: crops of the batch, with its pictures.
        slot: destination of the pictures that a transform has moved.
    """

    def __init__(self, source: FieldSource, crops: Slot, slot: Slot, view: int) -> None:
        rows, kinds = crops.rows, source.field_kinds
        columns = [rows[name] for name in ("window", "flip", "place", "turn")]
        if crops.layout.num_views > 1:
            columns = [column[:, view] for column in columns]
        with naming_method("fields()"):
            served, values = look_up_fields(source, rows["index"])
            placing = BatchPlan(*columns), crops.layout.crop_sizes[view], STILL
            self._placed = place_fields(kinds, values, served, rows["size"], placing)
        pictures = pictures_of(kinds)
        self._pictures = {name: crops.extras[name][view] for name in pictures}
        self._moved_pictures = {name: slot.extras[name][view] for name in pictures}
        self._moved: list[RowFields | None] = [None] * len(rows)

    def of_row(self, row: int) -> RowFields:
        """Return the fields within the crop of a row."""
        boxes, points = {}, {}
        for name, value in self._placed.items():
            if isinstance(value, Ragged):
                boxes[name] = take_rows(value, np.array([row])).parts
            else:
                points[name] = value[row]
        return RowFields({name: values[row] for name, values in self._pictures.items()}, boxes, points)

    def take(self, row: int, moved: RowFields) -> None:
        """Store the fields of a row that a transform has moved."""
        for name, picture in moved.pictures.items():
            self._moved_pictures[name][row] = picture
        self._moved[row] = moved

    def join(self) -> Placed:
        """Return the boxes and keypoints of all rows as place_fields does; none for rows without a sample."""
        joined: dict[str, Ragged | npt.NDArray[np.float32]] = {}
        for name, value in self._placed.items():
            if isinstance(value, Ragged):
                of_rows = [None if row is None else row.boxes[name] for row in self._moved]
                lengths = np.array([0 if parts is None else len(parts[0]) for parts in of_rows], np.int64)
                none = tuple(part[:0] for part in value.parts)
                parts = [none, *(parts for parts in of_rows if parts is not None)]
                joined[name] = Ragged(lengths, tuple(map(np.concatenate, zip(*parts, strict=True))))
            else:
                joined[name] = points = np.zeros_like(value)
                for number, row in enumerate(self._moved):
                    if row is not None:
                        points[number] = row.points[name]
        return joined
