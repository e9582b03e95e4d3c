"""BatchPlanner: the content of each batch, and how it is made."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import Source, field_kinds_of
from penstock.loaders.make.layout import BatchLayout, Part, image_layout, patch_layout
from penstock.loaders.make.native_rows import Plan, plan_images
from penstock.loaders.make.own_transform import OwnTransform, transformed_layout
from penstock.loaders.make.read_ahead import ReadAhead
from penstock.loaders.make.served_text import TextRule
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.epoch_steps import Shape
from penstock.loaders.order.schedule import Schedule
from penstock.pipelines.fields.field_kinds import FieldKind, pictures_of
from penstock.pipelines.plan.augmentations import AugmentPlan, BatchKey, plan_augmentations
from penstock.pipelines.plan.crops import choose_filters
from penstock.pipelines.plan.patch_grids import plan_patches
from penstock.pipelines.spec import ImagePipeline

Key = TypeVar("Key")
Found = TypeVar("Found")
Index = npt.NDArray[np.int64]
Augments = tuple[AugmentPlan | None, ...]  # of each view; None if the batch stage does nothing
_MOST_KEPT = 8  # more batches than are made concurrently


class Content(NamedTuple):
    """The content of a batch.

    Attributes:
        samples: the sample of each row, int64 [batch]; -1 for padding.
        keys: keys of the random draws of the rows, int64 [batch]; None if the samples are the keys.
        layout: layout of the batch in its slot.
        plan: draws the crops of its images.
        is_full: whether every row has a sample.
        augments: augmentations of the batch stage for each view, unless bad samples are replaced.
    """

    samples: Index
    keys: Index | None
    layout: BatchLayout
    plan: Plan
    is_full: bool
    augments: Augments


class _Kept:
    """Results of this process, so that threads that share a batch, its shape or a sample compute them once.

    Attributes:
        lock: lock for planning a batch.
        contents: the latest batches.
        plans: layout and plan of the latest shapes.
        read_ahead: announces samples to the source.
        sound: as BatchPlanner.sound; None before the first use.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.contents: dict[Cursor, Content] = {}
        self.plans: dict[tuple[int, int, Shape], tuple[BatchLayout, Plan]] = {}
        self.read_ahead = ReadAhead()
        self.sound: npt.NDArray[np.bool_] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return _Kept, ()


def _keep(kept: dict[Key, Found], key: Key, found: Found) -> None:
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[key] = found


@dataclass(frozen=True, kw_only=True)
class BatchPlanner:
    """Plan batches as a pure function of their places in the stream. Every worker has a copy.

        Cursor -> schedule -> samples, keys        sample of each row, keys of its random draws
                     |           |-> augments      the batch stage's work, drawn once and sent with the batch
               size or length -> layout            positions of images and masks in the slot
                                 |-> plan          draws crops once sizes are known, in numpy or in the native library

    Attributes:
        source: images and labels.
        pipelines: crops, size and resampling of each view of an image.
        transforms: the transform for the crops of each view; None for none.
        schedule: the samples of each batch.
        decoder: name of the JPEG decoder, or "auto".
        substitute: policy "replace": put the next good sample of the order in the row of a bad one.
        evaluation: serve each sample at most once: the row of a bad one becomes padding instead.
        device: device of the loader's batches, for engines that make them there.
        on_repaired: policy for an image that libjpeg repairs; see BadSamplePolicy.
        text: how texts are served; None for texts as they are.
        consumer_bytes: memory of the consumer's own batches, which an engine adds to its needs.
        announces: whether samples are announced to a source that fetches.
    """

    source: Source
    pipelines: tuple[ImagePipeline, ...]
    schedule: Schedule
    decoder: str
    substitute: bool
    evaluation: bool
    device: str = "cpu"
    on_repaired: str = "count"
    consumer_bytes: int = 0
    announces: bool = True
    transforms: tuple[OwnTransform | None, ...] = ()
    text: TextRule | None = None
    _kept: _Kept = field(default_factory=_Kept, init=False, repr=False, compare=False)

    def content(self, cursor: Cursor) -> Content:
        """Return the content of the batch at `cursor`. It must not be modified, because threads share it."""
        with self._kept.lock:  # threads that share a batch begin it together
            found = self._kept.contents.get(cursor)
            if found is None:
                index, keys = self.schedule.batch(cursor.epoch, cursor.position), self.schedule.draw_keys(cursor)
                is_full, augments = bool((index >= 0).all()), self.draw_augments(cursor, index, keys)
                found = Content(index, keys, *self._planned(cursor), is_full, augments)
                _keep(self._kept.contents, cursor, found)
            return found

    def announce(self, cursor: Cursor) -> None:
        """Announce the samples of the batch at `cursor`, and of batches after it, to a source that fetches."""
        if self.announces:
            self._kept.read_ahead.advance(self.source, self.schedule, cursor)

    def draw_augments(self, cursor: Cursor, index: Index, keys: Index | None) -> Augments:
        """Return the augmentations of samples `index`, int64 [n], where -1 is padding.

        keys: keys of the random draws of these rows of the batch at `cursor`, as in Content.
        """
        if not any(pipeline.augment.active for pipeline in self.pipelines):
            return (None,) * len(self.pipelines)
        numbers = index if keys is None else np.where(index < 0, -1, keys)
        drawn: list[AugmentPlan | None] = []
        for view, (pipeline, part) in enumerate(zip(self.pipelines, self.layout(cursor).images, strict=True)):
            key, size = BatchKey(self.schedule.seed, cursor.epoch, numbers, view), (part.shape[0], part.shape[1])
            drawn.append(plan_augmentations(pipeline.augment, size, key) if pipeline.augment.active else None)
        return tuple(drawn)

    def _planned(self, cursor: Cursor) -> tuple[BatchLayout, Plan]:
        """Return layout and plan of the batch at `cursor`."""
        schedule, drawn_by = self.schedule, (self.schedule.seed, cursor.epoch)
        batch_size, shape = schedule.batch_size_at(cursor), schedule.shape_at(cursor)
        found = self._kept.plans.get((cursor.epoch, batch_size, shape))
        if found is None:
            crops, rounds = self._crops(batch_size, shape), schedule.rounds
            if rounds is not None and isinstance(shape, int):
                grid = rounds.patch, shape, rounds.max_ratio
                filters = partial(choose_filters, self.pipelines, *drawn_by)
                plan = Plan(partial(plan_patches, self.pipeline, grid, *drawn_by), filters, crops)
            else:
                plan = plan_images(self._views(shape), *drawn_by, crops)
            found = transformed_layout(crops, self.transforms), plan
            _keep(self._kept.plans, (cursor.epoch, batch_size, shape), found)
        return found

    @property
    def pipeline(self) -> ImagePipeline:
        """The pipeline of the first view. All views have the same settings for reading and decoding."""
        return self.pipelines[0]

    @property
    def sound(self) -> npt.NDArray[np.bool_]:
        """Whether this process knows that libjpeg does not repair a sample, bool [samples]."""
        if self._kept.sound is None:
            self._kept.sound = np.zeros(len(self.source), bool)  # untouched pages do not use memory
        return self._kept.sound

    @cached_property
    def whole_views(self) -> tuple[bool, ...]:
        """Whether each view hands whole images over to its transform."""
        return tuple(pipeline.crop == "none" for pipeline in self.pipelines)

    @property
    def is_plain(self) -> bool:
        """Whether each row is a single image that fills its output, so that all decoders can make it."""
        is_image = len(self.pipelines) == 1 and self.schedule.rounds is None
        return is_image and self.pipeline.is_plain and not self.transforms

    def layout(self, cursor: Cursor) -> BatchLayout:
        """Return the layout of the batch at `cursor`, in its slot."""
        return self._planned(cursor)[0]

    def _crops(self, batch_size: int, shape: Shape) -> BatchLayout:
        """Return the layout of a batch before transforms."""
        tokens = () if self.text is None else self.text.extras
        if self.schedule.patch is not None and isinstance(shape, int):
            patches = patch_layout(self.pipeline, batch_size, self.schedule.patch, shape, self.pictures)
            return patches._replace(extras=(*patches.extras, *tokens))
        images = image_layout(self._views(shape), batch_size)
        extras = []
        for name, kind in self.pictures.items():
            kept = np.dtype(kind.dtype).str
            views = tuple(Part(kind.picture_shape(*size), kept) for size in images.crop_sizes)
            own = Part((images.row_pixels * kind.scale**2 * kind.channels,), kept)
            extras.append((name, (own,) if images.row_pixels else views))
        return images._replace(extras=(*extras, *tokens))

    @cached_property
    def pictures(self) -> dict[str, FieldKind]:
        """Masks and image targets by name; cached, because asking the source is the slowest part of planning."""
        return pictures_of(field_kinds_of(self.source))

    def _views(self, shape: Shape) -> tuple[ImagePipeline, ...]:
        """Return the pipelines with a size. Several views keep their own sizes; only the batch size changes then."""
        if isinstance(shape, tuple) and len(self.pipelines) == 1:
            return (replace(self.pipeline, size=shape),)
        return self.pipelines

    @property
    def largest_layout(self) -> BatchLayout:
        """A layout with enough memory for any batch."""
        layout = transformed_layout(self._crops(self.schedule.batch_size, None), self.transforms)
        layouts = [self._crops(*shape) for shape in self.schedule.shapes()]
        if not layouts:
            return layout
        most = max(each.num_bytes for each in layouts)
        # All images are in the first part, but each view needs one, because the rows store the draws of each view.
        images = Part((-(-most // layout.batch_size),)), *[Part((0,))] * (layout.num_views - 1)
        return layout._replace(images=images, extras=())
