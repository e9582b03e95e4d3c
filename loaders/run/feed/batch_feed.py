"""DeviceFeed: sends host batches to a device through pinned memory, and returns them in order."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from penstock.loaders.make.engine_contract import HostBatch
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.run.feed.copies import CopyEngine
from penstock.loaders.run.feed.stage_threads import THREADS
from penstock.loaders.run.feed.tensor_feed import TensorFeed, tensors_in
from penstock.loaders.system.recycled_memory import OutputBuffers
from penstock.pipelines.batch.stage import BatchStage, PlainStage
from penstock.pipelines.batch.target_stage import TargetStage
from penstock.pipelines.batch.upload_parameters import to_device
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.fields.ragged import Ragged, take_rows
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.user_functions import describe_exception, takes_generator
from penstock.pipelines.plan.augmentations import AugmentPlan
from penstock.pipelines.plan.crops import BatchPlan
from penstock.pipelines.plan.philox import STREAM_TRANSFORM, random_words, view_stream
from penstock.pipelines.targets import map_targets

Stage = BatchStage | PlainStage
Views = tuple[torch.Tensor, ...]  # the images of each view
_VIEW = 255  # view number for the draws of batch_transform, which is not used by views in practice


class DeviceBatch(NamedTuple):
    """A finished batch on its device.

    Attributes:
        images: [batch, 3, height, width], in the stage's dtype and memory format; a tuple of these for several views.
        labels: int64 [batch]; float32 [batch, num_classes] if the stage mixes samples; or the source's targets, a
            tensor or a dict of tensors.
        fields: the source's fields by name: tensors, lists of tensors, or lists; for several views tuples of these.
        host: the original host batch, without images if the device has a copy.
    """

    images: Any
    labels: Any
    fields: dict[str, object]
    host: HostBatch


class _PinnedSlot:
    """Pinned images and labels of one batch, kept until the device has read them.

    For a batch that is pinned or resident (made on the device) it keeps the images themselves instead of a copy.
    Without this reference the backend would write the next batch into their memory while the device still reads them.

    Attributes:
        images: uint8 [batch, height, width, 3] for each view, pinned, or on the device if the batch is resident; empty
            when free.
        labels: labels of the batch, pinned.
        busy_until: event after the last work that reads this slot; None before the first.
    """

    def __init__(self, copies: CopyEngine) -> None:
        self._copies = copies
        self._pinned: Views = ()
        self.images: Views = ()
        self.labels: Any = {}
        self.busy_until: torch.cuda.Event | None = None

    def fill(self, batch: HostBatch) -> None:
        """Store `batch` in a free slot."""
        labels = map_targets(torch.from_numpy, batch.labels)
        if [part.shape for part in tensors_in(self.labels)] != [part.shape for part in tensors_in(labels)]:
            self.labels = map_targets(self._copies.pinned, labels)  # the first labels, or a new batch size
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
        """Block the host until the device has read the images, and release them."""
        if self.busy_until is not None:
            self._copies.wait_on_host(self.busy_until)
            self.busy_until = None
        self.images = ()


class _BatchTransform:
    """Call `function(images, labels)`, or `function(images, labels, generator)`, which returns both.

    The generator is a torch.Generator of the device, seeded from (seed, epoch, first sample of the batch).
    Raises ValueError if it is not a function.
    """

    def __init__(self, function: Callable[..., Any], device: torch.device, seed: int) -> None:
        if not callable(function):
            raise ValueError(f"batch_transform must be a function of (images, labels), got {shown(function)}")
        self._function, self._device, self._seed = function, device, seed
        self._takes_generator = takes_generator(function, num_others=2)

    def __call__(self, batch: DeviceBatch) -> DeviceBatch:
        """Return the function's images and labels. Raises LoaderError E-DATASET for exceptions of the function."""
        host, views = batch.host, _views(batch.images)
        arguments: list[Any] = [batch.images, batch.labels]
        if self._takes_generator:
            stream = view_stream(STREAM_TRANSFORM, _VIEW)
            low, high = random_words(self._seed, host.cursor.epoch, host.index[:1], stream, 2)[0].tolist()
            arguments.append(torch.Generator(self._device).manual_seed(low | high << 32))
        try:
            images, labels = self._function(*arguments)
        except Exception as error:
            cause = f"batch_transform raised {describe_exception(error)}"
            raise LoaderError(
                "E-DATASET", cause, fix="it is called with images and labels, and must return both; see the cause"
            ) from error
        if isinstance(images, list):
            if len(images) != len(host.index):
                cause = f"batch_transform must keep the {len(host.index)} images of a batch, got {len(images)}"
                raise LoaderError("E-DATASET", cause, fix="return an image for each row")
            return batch._replace(images=images, labels=labels)
        found = (images,) if isinstance(images, torch.Tensor) else tuple(images)
        if any(len(view) != len(host.index) for view in found):
            got = ", ".join(str(len(view)) for view in found)
            cause = f"batch_transform must keep the {len(host.index)} rows of a batch, got {got}"
            raise LoaderError("E-DATASET", cause, fix="return an image for each row")
        if host.is_placed and [view.shape[-2:] for view in found] != [view.shape[-2:] for view in views]:
            got, given = (", ".join(str(list(view.shape)) for view in each) for each in (found, views))
            cause = f"batch_transform must keep the size of images, or fields would not follow: got {got} for {given}"
            raise LoaderError("E-DATASET", cause, fix="let the pipeline crop and resize")
        return batch._replace(images=_joined(found), labels=labels)


class DeviceFeed(TensorFeed[HostBatch, DeviceBatch]):
    """A TensorFeed of an engine's batches through pinned slots and a batch stage.

    On a CPU nothing can overlap: batches pass directly through the batch stage, one per view, with the batch's
    `augments`. `steps` finish each batch first. `batch_transform` is the user's function, called for
    each batch when it is returned; `seed` is the seed of its draws. `pad=False` leaves out rows without a sample.
    `targets` are the batch stages of image targets, by field name.

    Attributes:
        latest: place of the batch that was returned last; None if the next place is unknown.
        stages: the batch stage of each view.
    """

    latest: Cursor | None = None

    def __init__(
        self,
        source: Callable[[], HostBatch],
        ready: Callable[[], int],
        stages: Stage | Sequence[Stage],
        *,
        steps: Sequence[Callable[[HostBatch], HostBatch]] = (),
        seed: int = 0,
        pad: bool = True,
        batch_transform: Callable[..., Any] | None = None,
        targets: Mapping[str, TargetStage] = MappingProxyType({}),
        ahead: int = 2,
        copies: CopyEngine | None = None,
    ) -> None:
        self.stages: tuple[Stage, ...] = tuple(stages) if isinstance(stages, Sequence) else (stages,)
        finished = lambda: reduce(lambda batch, step: step(batch), steps, source())  # noqa: E731
        super().__init__(finished, ready, self.stages[0].device, ahead=ahead, copies=copies)
        self._pad, self._target_stages = pad, targets
        self._own = None if batch_transform is None else _BatchTransform(batch_transform, self.device, seed)
        self._slots: deque[_PinnedSlot] = deque()
        self._outputs = [OutputBuffers(stage.dtype) if stage.copies else None for stage in self.stages]
        # Also for a deleted feed: otherwise a backend would write into the memory of its resident batches at once.
        self._release = weakref.finalize(self, _release, self._slots, os.getpid())
        self._release.atexit = False
        weakref.finalize(self, THREADS.leave, id(self)).atexit = False

    def next(self) -> DeviceBatch:
        """Return the next batch, as TensorFeed.next does."""
        self.latest = None  # Ctrl-C may lose a batch here
        batch = super().next()
        self.latest = batch.host.cursor
        return batch

    def _make_room(self) -> None:
        if len(self._slots) > self._ahead:  # first, because the source may need this memory for a batch
            self._slots[0].free()

    def flush(self) -> None:
        """Drop the batches in progress."""
        self.latest = None
        self._waiting.clear()

    def close(self) -> None:
        """Drop the batches in progress, and release all memory after the device has read it."""
        self.flush()
        _release(self._slots, os.getpid())
        THREADS.close(self)

    def _on_host(self, batch: HostBatch) -> DeviceBatch:
        plans = batch.augments
        labels = self._targets(map_targets(torch.from_numpy, batch.labels), plans[0])
        if isinstance(batch.images, list):
            images = [_stage_alone(self.stages[0], image) for image in batch.images]
            return self._finish(images, labels, replace(batch, images=[]) if self.stages[0].copies else batch)
        views = _views(batch.images)
        buffers = zip(self._outputs, views, strict=True)
        outs = [None if each is None else each.take(tuple(view.shape)) for each, view in buffers]
        done = self._run_stages(views, outs, plans)
        host = batch if None in self._outputs else replace(batch, images=_nothing(views))
        return self._finish(done, labels, host)

    def _run_stages(
        self, views: Views, outs: Sequence[torch.Tensor | None], plans: Sequence[AugmentPlan | None]
    ) -> Views:
        """Return the images of each view after its stage; on a CPU, threads of ours augment parts of all views."""
        jobs: list[Callable[[], None]] = []
        done: list[Callable[[], torch.Tensor]] = []
        for stage, view, out, plan in zip(self.stages, views, outs, plans, strict=True):
            if plan is None or isinstance(stage, PlainStage) or self.device.type != "cpu":
                done.append(partial(stage, view, out, plan))
            else:
                result = torch.empty(view.shape, dtype=stage.dtype, device="cpu") if out is None else out
                jobs += stage.split(view, result, plan, THREADS.limit)
                done.append(partial(stage.arrange, result))
        if jobs:
            THREADS.run(self, jobs)
        return tuple(finish() for finish in done)

    def _finish(self, views: Views | list[torch.Tensor], labels: Any, host: HostBatch) -> DeviceBatch:
        """Return the finished batch, without padding if pad=False.

        Until here batches are full: slots and kernels have one shape, and every sample has a partner for mixing.
        """
        valid = host.fields.get("patch_valid")
        if valid is not None and self.stages[0].copies:  # the stage has also normalised the padding
            views[0].flatten(0, 1).index_fill_(0, to_device(np.flatnonzero(~valid), self.device), 0)
        rows = np.flatnonzero(host.index >= 0)
        if not self._pad and len(rows) < len(host.index):
            host = replace(
                host,
                index=host.index[rows],
                labels=map_targets(lambda part: part[rows], host.labels),
                plan=BatchPlan._make(part[rows] for part in host.plan),
                fields={name: _take(value, rows) for name, value in host.fields.items()},
            )
            # Padding at the end needs no copy; padding in between replaces bad samples.
            kept = slice(len(rows)) if rows.max(initial=-1) < len(rows) else to_device(rows, self.device)
            labels = map_targets(lambda part: part[kept], labels)
            if isinstance(views, list):
                views = [views[row] for row in rows.tolist()]
            else:
                views = tuple(view[kept] for view in views)
        fields = {name: self._send_field(value) for name, value in host.fields.items()}
        for name, stage in self._target_stages.items():
            of_views: Any = fields[name]
            if isinstance(of_views, list):  # of images of own sizes
                fields[name] = [stage(each[None])[0] for each in of_views]
                continue
            fields[name] = tuple(map(stage, of_views)) if isinstance(of_views, tuple) else stage(of_views)
        return DeviceBatch(_joined(views), labels, fields, host)

    def _finish_for_consumer(self, batch: DeviceBatch) -> DeviceBatch:
        """Return the batch after the user's function.

        The function may read data that earlier training steps change, such as the weights of a teacher, so it is called
        after them on their stream.
        """
        return batch if self._own is None or not len(batch.host.index) else self._own(batch)

    def _send_field(self, value: object) -> Any:
        """Return a field for users: arrays as tensors, a Ragged as a list of tensors, several views as a tuple.

        The tensors of a list are parts of one tensor, which is copied once.
        """
        if isinstance(value, Ragged):
            return list(torch.split(self._send_field(value.parts[0]), value.lengths.tolist()))
        if isinstance(value, tuple):
            return tuple(map(self._send_field, value))
        if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
            return list(map(self._send_field, value))
        if not isinstance(value, np.ndarray):
            return value
        tensor = torch.from_numpy(np.ascontiguousarray(value))
        if self._copies is None:
            return tensor
        return self._copies.pinned(tensor).copy_(tensor).to(self.device, non_blocking=True)

    def _targets(self, labels: Any, plan: AugmentPlan | None) -> Any:
        return map_targets(lambda part: self.stages[0].targets(part, plan), labels)

    def _send(self, batch: HostBatch, copies: CopyEngine) -> tuple[DeviceBatch, torch.cuda.Event]:
        plans = batch.augments
        if len(self._slots) <= self._ahead:
            self._slots.append(_PinnedSlot(copies))
        else:
            self._slots.rotate(-1)
        slot = self._slots[-1]
        slot.fill(batch)
        with copies.side():
            images = tuple(view.to(self.device, non_blocking=True) for view in slot.images)
            labels = map_targets(lambda part: part.to(self.device, non_blocking=True), slot.labels)
            if not batch.resident:
                slot.busy_until = copies.mark()  # a pinned slot is free after the copies, before the batch stage
            staged: Any
            if isinstance(batch.images, list):
                staged = [_stage_alone(self.stages[0], image) for image in images]
            else:
                work = zip(self.stages, images, plans, strict=True)
                staged = tuple(stage(view, plan=plan) for stage, view, plan in work)
            if batch.resident and not self.stages[0].copies:  # the stage returns uint8 images themselves
                staged = tuple(view.clone() for view in staged)
            host = replace(batch, images=_nothing(_views(batch.images)))
            ready = self._finish(staged, self._targets(labels, plans[0]), host)
            if batch.when_read is not None:
                batch.when_read(images[0])
            done = copies.mark()
            slot.busy_until = done if batch.resident else slot.busy_until
            return ready, done


def _release(slots: deque[_PinnedSlot], owner: int) -> None:
    while slots and os.getpid() == owner:  # in a forked child the device belongs to the parent
        slots[0].free()
        slots.popleft()


def _take(value: Any, rows: npt.NDArray[np.intp]) -> Any:
    """Return the chosen rows of a field; for several views a tuple of them."""
    is_views = isinstance(value, tuple) and not isinstance(value, Ragged)
    return tuple(take_rows(view, rows) for view in value) if is_views else take_rows(value, rows)


def _views(images: torch.Tensor | Views | list[torch.Tensor]) -> Views:
    return (images,) if isinstance(images, torch.Tensor) else tuple(images)


def _stage_alone(stage: Stage, image: torch.Tensor) -> torch.Tensor:
    """Return an image [height, width, channels] after the batch stage, [channels, height, width]."""
    if not image.numel():  # padding
        return torch.empty(image.shape[2:] + image.shape[:2], dtype=stage.dtype, device=image.device)
    return stage(image[None])[0]


def _joined(views: Views | list[torch.Tensor]) -> torch.Tensor | Views | list[torch.Tensor]:
    """Return the images of a batch for users: a tensor, a tuple for several views, or a list for own sizes."""
    return views if isinstance(views, list) or len(views) > 1 else views[0]


def _nothing(views: Views) -> Any:
    """Return empty images to replace those of a batch, so that the worker's slot is free while the batch is in use."""
    return _joined(tuple(view.new_empty((0, *view.shape[1:])) for view in views))
