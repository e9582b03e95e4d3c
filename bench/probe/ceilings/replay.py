"""Replaces the loader by a few of its batches in host memory, fed to the device repeatedly."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import cycle, islice

import torch

from penstock.loaders.data.sources.contract import Source
from penstock.loaders.front.create import create_loader
from penstock.loaders.make.engine_contract import HostBatch
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.run.feed.batch_feed import DeviceFeed
from penstock.pipelines.batch.stage import BatchStage
from penstock.pipelines.plan.augmentations import BatchKey
from penstock.pipelines.plan.crops import BatchPlan
from penstock.pipelines.spec import ImagePipeline

NUM_BATCHES = 4  # more than fit into a processor's caches


def host_batches(source: Source, pipeline: ImagePipeline, batch_size: int, seed: int) -> list[HostBatch]:
    """Make the first batches of the stream in this process, in the form of an engine; bad samples are replaced."""
    settings = {"pipeline": pipeline, "batch_size": batch_size, "seed": seed, "on_bad_sample": "replace"}
    with (
        create_loader(source, backend="torch", workers=0, device="cpu", dtype=torch.uint8, **settings) as loader,  # type: ignore[arg-type]
        closing(loader.batches()) as batches,  # type: ignore[type-var]
    ):
        return [
            HostBatch(
                cursor=Cursor(batch.epoch, batch.step * batch_size),
                images=batch.images.permute(0, 2, 3, 1),
                index=batch.index,
                labels=batch.labels.numpy(),
                plan=BatchPlan(batch.windows, batch.flips, batch.places, batch.turns),
                bad=(),
                produce_s=0.0,
            )
            for batch in islice(batches, NUM_BATCHES)
        ]


class ReplayedBatches:
    """Iterates forever over (images, labels) through the loader's feed and batch stage.

    make_batches(): called once, by `prepare()` or the first iteration. resident: the batches are already on the
    device, as for an engine that decodes there.
    """

    def __init__(
        self,
        make_batches: Callable[[], list[HostBatch]],
        pipeline: ImagePipeline,
        dtype: torch.dtype,
        device: str,
        *,
        resident: bool,
    ) -> None:
        self._make, self._resident, self._target = make_batches, resident, torch.device(device)
        self._stage = BatchStage(pipeline, dtype, self._target)
        self._feed: DeviceFeed | None = None

    def prepare(self) -> DeviceFeed:
        """Make the batches on the first call; return their feed."""
        if self._feed is None:
            batches = [
                dataclasses.replace(b, augments=(self._stage.plan(BatchKey(0, b.cursor.epoch, b.index)),))
                for b in self._make()
            ]
            if self._resident:
                batches = [dataclasses.replace(b, images=b.images.to(self._target), resident=True) for b in batches]
            elif self._target.type != "cpu":  # like the slots of an engine
                batches = [dataclasses.replace(b, images=b.images.pin_memory(), pinned=True) for b in batches]
            endless = cycle(batches)
            self._feed = DeviceFeed(lambda: next(endless), lambda: 1, self._stage)
        return self._feed

    def one(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return one of the batches as input for the model."""
        return next(iter(self))

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        feed = self.prepare()
        while True:
            batch = feed.next()
            images, labels = batch.images, batch.labels
            del batch
            yield images, labels
