"""The contract between a loader and its engine: Engine, and the HostBatch that it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.ledger import BadSample
from penstock.pipelines.fields.ragged import Ragged
from penstock.pipelines.messages.user_warnings import Warned
from penstock.pipelines.plan.augmentations import AugmentPlan
from penstock.pipelines.plan.crops import BatchPlan

# Boxes and keypoints of all rows of a view, by field name, as place_fields returns them.
Placed = Mapping[str, Ragged | npt.NDArray[np.float32]]


@dataclass(frozen=True)
class HostBatch:
    """One rank's batch before the batch stage.

    Attributes:
        cursor: its place in the stream.
        images: uint8 [batch, height, width, 3], in host memory unless `resident`; a tuple of these for several views, a
            list of [height, width, 3] for images of own sizes.
        index: int64 [batch], positions in the source, -1 in padding rows.
        labels: int64 [batch], -1 in padding rows; or the targets of the source, NaN for floats.
        plan: how each image was made; for several views, each array is [batch, views, ...].
        augments: augmentations of the batch stage for each view, None for none.
        moved: for each view, the boxes and keypoints of all rows if workers have moved them, as place_fields returns
            them, or None; () if workers do not move fields.
        sizes: int32 [batch, 2], width and height of the whole upright images, in pixels.
        exif: uint8 [batch], EXIF orientation of each file, 1 to 8, applied or not; 0 in padding rows, and if it is
            not applied and no field moves with the image.
        output_sizes: (height, width) of each view's images before transforms; () for patches and own sizes.
        fields: the source's other data, by name: arrays, lists, or Ragged for lists of arrays; for several views
            tuples of these if they move with the image.
        is_placed: whether some of the fields contain positions in the images, such as boxes.
        extras: other arrays that workers make by name: masks, [batch, ...] for each view, and tokens of texts, one for
            all views; zeros in padding rows.
        bad: the samples that could not be served.
        produce_s: seconds that one worker spent on the batch.
        resident: whether the images are on the loader's device, in memory that the backend reuses after the last tensor
            over it is deleted.
        read_s: seconds of produce_s that were spent inside the source.
        repaired: samples that are served although libjpeg filled in missing data; each is its own substitute.
        pinned: whether the images are in page-locked memory, which the backend reuses after the last tensor over it is
            deleted.
        misread: samples of this batch or an earlier one that a decoder has decoded wrongly; from now on another decoder
            decodes them.
        warned: warnings of the workers, for the consumer to show.
        when_read: called on the copy stream with `images` of a resident batch after their last read.
    """

    cursor: Cursor
    images: Any
    index: npt.NDArray[np.int64]
    labels: Any
    plan: BatchPlan
    bad: tuple[BadSample, ...]
    produce_s: float
    resident: bool = False
    read_s: float = 0.0
    repaired: tuple[BadSample, ...] = ()
    pinned: bool = False
    misread: tuple[BadSample, ...] = ()
    extras: Mapping[str, tuple[npt.NDArray[np.generic], ...]] = field(default_factory=dict)
    augments: tuple[AugmentPlan | None, ...] = (None,)
    moved: tuple[Placed | None, ...] = ()
    sizes: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 2), np.int32))
    exif: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    output_sizes: tuple[tuple[int, int], ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    is_placed: bool = False
    warned: Warned = ()
    when_read: Callable[[torch.Tensor], object] | None = None


class Engine(Protocol):
    """The interface of a backend: make the batches of a schedule in order, epoch after epoch, ahead of the consumer.

    Epochs, state, policy, statistics and transfers belong to Loader; an engine does not know them.

    Attributes:
        name: name of the backend.
    """

    name: str

    def seek(self, cursor: Cursor) -> None:
        """Make `cursor` the next batch, and start the workers if necessary. Free if `cursor` is already next."""
        ...

    def next(self) -> HostBatch:
        """Wait for the next batch and return it. Raises LoaderError, such as E-WORKER, E-OOM or E-TIMEOUT."""
        ...

    def ready(self) -> int:
        """Return the number of batches that are finished and not yet taken."""
        ...

    def describe(self) -> dict[str, object]:
        """Return the current settings (workers, prefetch, ...), JSON-serialisable, for records and reports."""
        ...

    def close(self) -> None:
        """Stop and free everything within seconds, regardless of the workers' state; idempotent."""
        ...
