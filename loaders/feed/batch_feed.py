"""Host -> device: pinned slots, a side stream, non_blocking copies, one event per slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from penstock.loaders.feed.copies import CopyEngine, CudaCopyEngine
from penstock.loaders.stream.contract import HostBatch
from penstock.loaders.system.recycled_memory import OutputBuffers
from penstock.pipelines.batch.stage import BatchStage
from penstock.pipelines.plan.augmentations import AugmentPlan, BatchKey


class DeviceBatch(NamedTuple):
    """A batch on its device: images [batch, 3, height, width] channels_last, labels, its origin.

    labels: int64 [batch], or where the stage mixes float32 [batch, num_classes].
    """

    images: torch.Tensor
    labels: torch.Tensor
    host: HostBatch


class _PinnedSlot:
    """Pinned images and labels, and the event after the work that last read them.

    Of a resident batch it holds the images themselves: the backend would use their memory again while the device reads.
    """

    def __init__(self, copies: CopyEngine, batch: HostBatch) -> None:
        self._copies = copies
        self._pinned: torch.Tensor | None = None
        self.images = batch.images
        self.labels = copies.pinned(torch.from_numpy(batch.labels))
        self.busy_until: Any = None

    def fill(self, batch: HostBatch) -> None:
        """Take the batch in, once the device is done reading what was there."""
        if self.busy_until is not None:
            self._copies.wait_on_host(self.busy_until)
        self.labels.copy_(torch.from_numpy(batch.labels))
        if batch.resident:
            self.images = batch.images
            return
        if self._pinned is None:
            self._pinned = self._copies.pinned(batch.images)
        self.images = self._pinned.copy_(batch.images)


class DeviceFeed:
    """Takes host batches from `source`, keeps up to `ahead` of them on the way to the device, hands them out in order.

    It waits for the batch that is asked for; those after it are sent ahead only if `ready()` says they are finished, so
    that the device never idles for a batch that nobody needs yet. On a CPU there is nothing to overlap: batches pass
    straight through the batch stage. seed: of the augmentations that the stage may apply. An exception of `source` is
    raised in its place in the order, after the batches before it.
    """

    def __init__(
        self,
        source: Callable[[], HostBatch],
        ready: Callable[[], int],
        stage: BatchStage,
        *,
        seed: int = 0,
        ahead: int = 2,
        copies: CopyEngine | None = None,
    ) -> None:
        self._source, self._ready, self._stage, self._ahead = source, ready, stage, ahead
        self._seed = seed
        self._copies = copies
        if copies is None and stage.device.type == "cuda":
            self._copies = CudaCopyEngine(stage.device)
        self._slots: deque[_PinnedSlot] = deque()
        self._waiting: deque[tuple[DeviceBatch, Any] | Exception] = deque()
        self._outputs: OutputBuffers | None = None

    def next(self) -> DeviceBatch:
        """The next batch, safe to use on the current stream."""
        if self._copies is None:
            return self._on_host(self._source())
        if not self._waiting:
            self._fetch()
        while len(self._waiting) <= self._ahead and self._ready() and not isinstance(self._waiting[-1], Exception):
            self._fetch()
        first = self._waiting.popleft()
        if isinstance(first, Exception):
            raise first
        batch, event = first
        self._copies.hand_over(event, (batch.images, batch.labels))
        return batch

    def _fetch(self) -> None:
        try:
            self._waiting.append(self._send(self._source()))
        except Exception as error:
            self._waiting.append(error)

    def flush(self) -> None:
        """Forget the batches that are under way."""
        self._waiting.clear()

    def _on_host(self, batch: HostBatch) -> DeviceBatch:
        out = None
        if self._stage.dtype != torch.uint8:
            if self._outputs is None:
                self._outputs = OutputBuffers(tuple(batch.images.shape), self._stage.dtype)
            out = self._outputs.take()
        plan = self._plan(batch)
        labels = self._stage.targets(torch.from_numpy(batch.labels), plan)
        return DeviceBatch(self._stage(batch.images, out, plan), labels, batch)

    def _plan(self, batch: HostBatch) -> AugmentPlan | None:
        return self._stage.plan(BatchKey(self._seed, batch.cursor.epoch, batch.index))

    def _send(self, batch: HostBatch) -> tuple[DeviceBatch, Any]:
        assert self._copies is not None
        if len(self._slots) <= self._ahead:
            self._slots.append(_PinnedSlot(self._copies, batch))
        else:
            self._slots.rotate(-1)
        slot = self._slots[-1]
        slot.fill(batch)
        plan = self._plan(batch)
        with self._copies.side():
            images = slot.images.to(self._stage.device, non_blocking=True)
            labels = slot.labels.to(self._stage.device, non_blocking=True)
            if not batch.resident:
                slot.busy_until = self._copies.mark()  # a pinned slot is free after the copies, before the batch stage
            staged = self._stage(images, plan=plan)
            if batch.resident and self._stage.dtype == torch.uint8:  # which the stage hands out as it is
                staged = staged.clone()
            ready = DeviceBatch(
                staged, self._stage.targets(labels, plan), replace(batch, images=_nothing(batch.images))
            )
            done = self._copies.mark()
            slot.busy_until = done if batch.resident else slot.busy_until
            return ready, done


def _nothing(images: torch.Tensor) -> torch.Tensor:
    """No pixels: lets the worker's slot go while the batch is still under way."""
    return images.new_empty((0, *images.shape[1:]))
