"""DeviceFeed sends host batches to a device through pinned memory and hands them out in order."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from penstock.loaders.make.engine_contract import HostBatch
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.run.feed.batch_transform import BatchTransform
from penstock.loaders.run.feed.copies import CopyEngine
from penstock.loaders.run.feed.field_tensors import FieldTensors, send_fields
from penstock.loaders.run.feed.patch_fields import clear_padding
from penstock.loaders.run.feed.tensor_feed import TensorFeed, tensors_in
from penstock.loaders.system.recycled_memory import OutputBuffers
from penstock.pipelines.batch.stage import BatchStage, PlainStage
from penstock.pipelines.batch.upload_parameters import to_device
from penstock.pipelines.plan.augmentations import AugmentPlan, BatchKey
from penstock.pipelines.targets import map_targets

Stage = BatchStage | PlainStage
Views = tuple[torch.Tensor, ...]  # of each view the images
_OF_EACH_ROW = ("index", "windows", "flips", "places", "turns")


class DeviceBatch(NamedTuple):
    """Hold a finished batch on its device.

    Attributes:
        images: [batch, 3, height, width], in the stage's dtype and memory format; a tuple of these for several views.
        labels: int64 [batch]; float32 [batch, num_classes] where the stage mixes samples; or the source's targets, a
            tensor or a dict of tensors.
        fields: the source's fields by name: tensors, lists of tensors, or lists.
        host: the batch that it was made of; its images are gone where the device has a copy.
    """

    images: Any
    labels: Any
    fields: FieldTensors
    host: HostBatch


class _PinnedSlot:
    """Hold pinned images and labels of one batch until the device has read them.

    Of a batch that is pinned or resident (made on the device) it holds the images themselves instead of a copy:
    without this reference the backend would write the next batch into their memory while the device still reads them.

    Attributes:
        images: of each view uint8 [batch, height, width, 3], pinned, or on the device if the batch is resident; empty
            when free.
        labels: those of the batch, pinned.
        busy_until: event after the last work that reads this slot; None before the first.
    """

    def __init__(self, copies: CopyEngine, batch: HostBatch) -> None:
        self._copies = copies
        self._pinned: Views = ()
        self.images: Views = ()
        self.labels = map_targets(copies.pinned, map_targets(torch.from_numpy, batch.labels))
        self.busy_until: Any = None

    def fill(self, batch: HostBatch) -> None:
        """Take `batch` in; what was there is gone already."""
        labels = map_targets(torch.from_numpy, batch.labels)
        if [part.shape for part in tensors_in(self.labels)] != [part.shape for part in tensors_in(labels)]:
            self.labels = map_targets(self._copies.pinned, labels)  # the batch size has changed
        for pinned, own in zip(tensors_in(self.labels), tensors_in(labels), strict=True):
            pinned.copy_(own)
        views = _views(batch.images)
        if batch.resident or batch.pinned:
            self.images = views
            return
        if [view.shape for view in self._pinned] != [view.shape for view in views]:
            self._pinned = tuple(map(self._copies.pinned, views))
        self.images = tuple(pinned.copy_(view) for pinned, view in zip(self._pinned, views, strict=True))

    def free(self) -> None:
        """Block the host until the device has read what lies here, and let go of it."""
        if self.busy_until is not None:
            self._copies.wait_on_host(self.busy_until)
            self.busy_until = None
        self.images = ()


class DeviceFeed(TensorFeed):
    """TensorFeed of an engine's batches, which go through pinned slots and a batch stage.

    On a CPU there is nothing to overlap: batches pass straight through the batch stage, of several views each through
    its own. `seed` is the seed of the stages' augmentations, `draw_keys` that of Schedule. `batch_transform` is the
    user's, called for each batch as it is handed out. `pad=False` leaves out rows that hold no sample. `add_fields`
    returns a batch with the source's fields, by the plans of the stages.
    """

    def __init__(
        self,
        source: Callable[[], HostBatch],
        ready: Callable[[], int],
        stages: Stage | Sequence[Stage],
        *,
        seed: int = 0,
        draw_keys: Callable[[Cursor], npt.NDArray[np.int64] | None] = lambda cursor: None,
        pad: bool = True,
        batch_transform: Callable[..., Any] | None = None,
        add_fields: Callable[[HostBatch, Sequence[AugmentPlan | None]], HostBatch] = lambda batch, plans: batch,
        ahead: int = 2,
        copies: CopyEngine | None = None,
    ) -> None:
        self._stages: tuple[Stage, ...] = tuple(stages) if isinstance(stages, Sequence) else (stages,)
        super().__init__(source, ready, self._stages[0].device, ahead=ahead, copies=copies)
        self._seed, self._pad, self._draw_keys, self._add_fields = seed, pad, draw_keys, add_fields
        self._own = None if batch_transform is None else BatchTransform(batch_transform, self.device, seed)
        self._slots: deque[_PinnedSlot] = deque()
        self._outputs = [OutputBuffers(stage.dtype) if stage.copies else None for stage in self._stages]
        # Also of a feed that is dropped: a backend would write into the memory of its resident batches at once.
        self._release = weakref.finalize(self, _release, self._slots, os.getpid())
        self._release.atexit = False

    def _make_room(self) -> None:
        if len(self._slots) > self._ahead:  # first, because the source may have to make a batch where this one lies
            self._slots[0].free()

    def flush(self) -> None:
        """Drop the batches that are under way."""
        self._waiting.clear()

    def close(self) -> None:
        """Drop the batches that are under way, and let go of all memory once the device has read what lies there."""
        self.flush()
        _release(self._slots, os.getpid())

    def _on_host(self, batch: HostBatch) -> DeviceBatch:
        plans, views = self._plan(batch), _views(batch.images)
        batch = self._add_fields(batch, plans)
        labels = self._targets(map_targets(torch.from_numpy, batch.labels), plans[0])
        buffers = zip(self._outputs, views, strict=True)
        outs = [None if each is None else each.take(tuple(view.shape)) for each, view in buffers]
        work = zip(self._stages, views, outs, plans, strict=True)
        done = tuple(stage(view, out, plan) for stage, view, out, plan in work)
        host = batch if None in self._outputs else replace(batch, images=_nothing(views))
        return self._finish(done, labels, host)

    def _finish(self, views: Views, labels: Any, host: HostBatch) -> DeviceBatch:
        """Return the finished batch, without padding unless that is wanted.

        Batches are full up to here: slots and kernels have one shape, and a sample that is to be mixed has a partner.
        """
        if self._stages[0].copies:
            clear_padding(views[0], host)
        rows = np.flatnonzero(host.index >= 0)
        if self._pad or len(rows) == len(host.index):
            return DeviceBatch(_joined(views), labels, self._send_fields(host), host)
        of_each_row = {name: getattr(host, name)[rows] for name in _OF_EACH_ROW}
        of_each_row["labels"] = map_targets(lambda part: part[rows], host.labels)
        # Padding at the end costs no copy; in between it stands for bad samples.
        kept = slice(len(rows)) if (host.index[: len(rows)] >= 0).all() else to_device(rows, views[0].device)
        images = _joined(tuple(view[kept] for view in views))
        labels = map_targets(lambda part: part[kept], labels)
        return DeviceBatch(images, labels, self._send_fields(host, rows), replace(host, **of_each_row))

    def _finish_for_consumer(self, batch: DeviceBatch) -> DeviceBatch:
        """Return the batch as the user's function makes it.

        The function may read what the steps before change, such as the weights of a teacher, so it is called after
        them on their stream.
        """
        if self._own is None or not len(batch.host.index):
            return batch
        views, labels = self._own(_views(batch.images), batch.labels, batch.host)
        return batch._replace(images=_joined(views), labels=labels)

    def _send_fields(self, host: HostBatch, rows: npt.NDArray[np.intp] | None = None) -> FieldTensors:
        return send_fields(host.fields, rows, self.device, self._copies) if host.fields else {}

    def _targets(self, labels: Any, plan: AugmentPlan | None) -> Any:
        return map_targets(lambda part: self._stages[0].targets(part, plan), labels)

    def _plan(self, batch: HostBatch) -> list[AugmentPlan | None]:
        """Draw the augmentations of each view."""
        keys = self._draw_keys(batch.cursor)
        numbers = batch.index if keys is None else np.where(batch.index < 0, -1, keys)
        key = BatchKey(self._seed, batch.cursor.epoch, numbers)
        shapes = [view.shape for view in _views(batch.images)]
        sizes = [(shape[1], shape[2]) if len(shape) == 4 else None for shape in shapes]
        return [stage.plan(key._replace(view=view), sizes[view]) for view, stage in enumerate(self._stages)]

    def _send(self, batch: HostBatch, copies: CopyEngine) -> tuple[DeviceBatch, Any]:
        plans = self._plan(batch)
        batch = self._add_fields(batch, plans)
        if len(self._slots) <= self._ahead:
            self._slots.append(_PinnedSlot(copies, batch))
        else:
            self._slots.rotate(-1)
        slot = self._slots[-1]
        slot.fill(batch)
        with copies.side():
            images = tuple(view.to(self.device, non_blocking=True) for view in slot.images)
            labels = map_targets(lambda part: part.to(self.device, non_blocking=True), slot.labels)
            if not batch.resident:
                slot.busy_until = copies.mark()  # a pinned slot is free after the copies, before the batch stage
            work = zip(self._stages, images, plans, strict=True)
            staged = tuple(stage(view, plan=plan) for stage, view, plan in work)
            if batch.resident and not self._stages[0].copies:  # the stage returns uint8 images themselves
                staged = tuple(view.clone() for view in staged)
            host = replace(batch, images=_nothing(_views(batch.images)))
            ready = self._finish(staged, self._targets(labels, plans[0]), host)
            if batch.when_read is not None:
                batch.when_read(images[0])
            done = copies.mark()
            slot.busy_until = done if batch.resident else slot.busy_until
            return ready, done


def _release(slots: deque[_PinnedSlot], owner: int) -> None:
    while slots and os.getpid() == owner:  # in a forked child the device is the parent's
        slots[0].free()
        slots.popleft()


def _views(images: torch.Tensor | Views) -> Views:
    return (images,) if isinstance(images, torch.Tensor) else images


def _joined(views: Views) -> torch.Tensor | Views:
    """Return the images of a batch as users get them: a tensor, or a tuple of tensors for several views."""
    return views[0] if len(views) == 1 else views


def _nothing(views: Views) -> torch.Tensor | Views:
    """Return no pixels, in place of a batch's: the worker's slot is free while the batch is still under way."""
    return _joined(tuple(view.new_empty((0, *view.shape[1:])) for view in views))
