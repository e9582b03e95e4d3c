"""The feed on a simulated device: in any order of its streams, no data is read too early or too late."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from simulated_device import MAIN, Event, SimulatedCopies, SimulatedDevice, Work

from penstock.loaders.dali import dali_stage
from penstock.loaders.dali.dali_verify import mark_unwritten
from penstock.loaders.make.engine_contract import HostBatch
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.run.feed import batch_feed
from penstock.loaders.run.feed.tensor_feed import tensors_in
from penstock.pipelines import imagenet_train
from penstock.pipelines.batch.stage import BatchStage
from penstock.pipelines.fields.ragged import Ragged
from penstock.pipelines.plan.crops import BatchPlan

META = torch.device("meta")
BATCH, SIZE = 2, 4
# PENSTOCK_SCHEDULES=10000 runs all schedules; the gate runs a part.
SCHEDULES = int(os.environ.get("PENSTOCK_SCHEDULES", "100"))


class Source:
    """Batches in host memory or on the device; both are overwritten once nothing refers to them.

    They have one or two views, fields or none, and rows without a sample.
    """

    def __init__(self, device: SimulatedDevice, draw: random.Random) -> None:
        self._device, self._draw, self._number = device, draw, 0
        self._resident, self._pinned = draw.choice((0.0, 0.5, 1.0)), draw.choice((0.0, 0.5, 1.0))
        self.views, self._has_fields = draw.choice((1, 1, 2)), draw.random() < 0.5
        self.join: Callable[[torch.Tensor], torch.Tensor] = lambda images: images

    def __call__(self) -> HostBatch:
        self._number += 1
        resident = self._draw.random() < self._resident
        pinned = not resident and self._draw.random() < self._pinned
        views = tuple(self._images(resident) for _ in range(self.views))
        zeros = np.zeros(BATCH, np.int64)
        index = np.array([self._draw.choice((0, 0, -1)) for _ in range(BATCH)], np.int64)
        plan = BatchPlan(zeros[:, None], zeros > 0, zeros[:, None], zeros)
        images = views[0] if self.views == 1 else views
        cursor = Cursor(0, self._number * BATCH)
        augments = (None,) * self.views
        batch = HostBatch(cursor, images, index, zeros, plan, (), 0.0, resident, pinned=pinned, augments=augments)
        if self._has_fields:
            lengths = np.array([self._draw.randrange(3) for _ in range(BATCH)], np.int64)
            boxes = Ragged(lengths, (np.zeros((lengths.sum(), 4), np.float32),))
            masks = tuple(np.zeros((BATCH, SIZE, SIZE), np.uint8) for _ in range(self.views))
            batch = replace(batch, fields={"boxes": boxes, "mask": masks, "name": ["a"] * BATCH})
        return replace(batch, when_read=mark_unwritten) if resident else batch

    def _images(self, resident: bool) -> torch.Tensor:
        images = torch.empty(BATCH, SIZE, SIZE, 3, dtype=torch.uint8, device=META if resident else "cpu")
        images = self._device.own(images, "backend")
        return self.join(images) if resident else images


class Teacher:
    """A batch_transform like that of a distilled model: it reads weights that each step changes, and keeps features."""

    def __init__(self, batch: int) -> None:
        self.weights, self.features = torch.zeros(SIZE, device=META), torch.zeros(batch, device=META)
        self.batches = 0

    def __call__(self, images: Any, labels: torch.Tensor) -> Any:
        self.batches += 1
        made = tuple(view.float() * self.weights for view in views_of(images))
        self.features.copy_(made[0].new_zeros(len(self.features)) + made[0].sum())
        return made[0] if isinstance(images, torch.Tensor) else made, labels + self.weights.sum()

    def step(self) -> None:
        self.weights.add_(self.features.sum())


def views_of(images: Any) -> tuple[torch.Tensor, ...]:
    return (images,) if isinstance(images, torch.Tensor) else images


def stale_reads(
    seed: int, feeds: ModuleType = batch_feed, copies: type[SimulatedCopies] = SimulatedCopies, stages: Any = None
) -> int:
    """Serve some batches to a consumer that is slow, keeps some, and leaves early; return the number of stale reads."""
    draw = random.Random(seed)
    device = SimulatedDevice(seed)
    with device:
        source = Source(device, draw)
        if stages is not None:
            source.join = lambda images: joined(stages, copies(device, "dali"), images)
        pipeline, dtype = imagenet_train(SIZE), draw.choice((torch.uint8, torch.bfloat16))
        staged = [BatchStage(pipeline, dtype, META) for _ in range(source.views)]
        teacher = Teacher(BATCH) if draw.random() < 0.5 else None
        feed = feeds.DeviceFeed(
            source,
            lambda: draw.randrange(3),
            staged,
            pad=draw.random() < 0.5,
            batch_transform=teacher,
            ahead=draw.randrange(4),
            copies=copies(device),
        )
        held = []
        for _ in range(draw.randrange(1, 9)):
            batch = feed.next()
            _ = sum(part.float().sum() for part in tensors_in((batch.images, batch.labels, batch.fields)))  # the step
            if teacher is not None:
                teacher.step()
            if draw.random() < 0.3:
                held.append(batch)
            if held and draw.random() < 0.3:
                del held[draw.randrange(len(held))]
            del batch
            if draw.random() < 0.1:
                feed.flush()
        if draw.random() < 0.7:
            feed.close()
        del feed, held
        torch.empty(1, device=META)  # recycles dropped memory
        device.drain()
    return device.stale


def joined(stages: Any, copies: SimulatedCopies, images: torch.Tensor) -> torch.Tensor:
    """A batch joined by the stage of the dali backend: its first row was decoded on the host."""
    stage = stages.DaliStage.__new__(stages.DaliStage)
    stage._copies = copies
    result: torch.Tensor = stage._on_device(np.zeros((BATCH, SIZE, SIZE, 3), np.uint8), [([1], images[1:])])
    return result


def test_no_order_of_the_streams_causes_a_stale_read() -> None:
    assert [seed for seed in range(SCHEDULES) if stale_reads(seed)] == []


def test_joined_rows_of_the_dali_stage_cause_no_stale_read() -> None:
    assert [seed for seed in range(SCHEDULES // 2) if stale_reads(seed, stages=dali_stage)] == []


# ---- planted bugs ----


class DoesNotWait(SimulatedCopies):
    def hand_over(self, event: Event, tensors: tuple[torch.Tensor, ...]) -> None:
        for tensor in tensors:
            self.device.record(tensor, MAIN)


class DoesNotRecord(SimulatedCopies):
    def hand_over(self, event: Event, tensors: tuple[torch.Tensor, ...]) -> None:
        self.device.queue(MAIN, Work(waits=event))


class HostDoesNotWait(SimulatedCopies):
    def wait_on_host(self, event: Event) -> None:
        pass


class MarksTheConsumersStream(SimulatedCopies):
    def mark(self) -> Event:
        event = Event()
        self.device.queue(MAIN, Work(happens=event))
        return event


class WorksOnTheConsumersStream(SimulatedCopies):
    def side(self) -> Any:
        return SimulatedCopies(self.device, MAIN).side()


@pytest.mark.parametrize(
    "copies", [DoesNotWait, DoesNotRecord, HostDoesNotWait, MarksTheConsumersStream, WorksOnTheConsumersStream]
)
def test_a_bug_of_the_engine_is_found(copies: type[SimulatedCopies]) -> None:
    assert any(stale_reads(seed, copies=copies) for seed in range(300))


# name -> (module, its text, the text with a bug, further pairs of texts)
BUGS: dict[str, tuple[Any, ...]] = {
    "a slot is filled while it is read": (
        batch_feed,
        "        if len(self._slots) > self._ahead:",
        "        if False:",
    ),
    "a slot of the engine is returned while it is read": (
        batch_feed,
        "            return ready, done",
        "            slot.images = slot.images if batch.resident else ()\n            return ready, done",
    ),
    "a slot is marked as read before its copies": (
        batch_feed,
        "        with copies.side():\n            images",
        "        slot.busy_until = copies.mark()\n        with copies.side():\n            images",
        "slot.busy_until = copies.mark()  # a pinned",
        "pass  # a pinned",
    ),
    "resident pixels are released at once": (
        batch_feed,
        "done if batch.resident else slot.busy_until",
        "slot.busy_until",
    ),
    "the memory is marked as read after the event": (
        batch_feed,
        "                batch.when_read(images[0])\n            done = copies.mark()\n",
        "                pass\n            done = copies.mark()\n            (batch.when_read or id)(images[0])\n",
    ),
    "resident pixels are handed out themselves": (
        batch_feed,
        "staged = tuple(view.clone() for view in staged)",
        "pass",
    ),
    "nothing waits at the end": (batch_feed, "        slots[0].free()\n", ""),
    "the user's function runs ahead of the steps": (
        batch_feed,
        "            ready = self._finish(",
        "            ready = DeviceFeed._finish_for_consumer(self, self._finish(",
        "plans[0]), host)\n            if",
        "plans[0]), host))\n            if",
        "return batch if self._own is None or",
        "return batch if self._copies is not None and self._copies.device.now == 'main' or self._own is None or",
    ),
    "cut rows and fields are sent after the event": (
        batch_feed,
        "            ready = self._finish(",
        "            early = copies.mark()\n            ready = self._finish(",
        "return ready, done",
        "return ready, early",
    ),
    "joined rows are handed on before they are written": (dali_stage, "        copies.wait_on_host(done)\n", ""),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_of_the_code_is_found(name: str) -> None:
    module, *texts = BUGS[name]
    planted = with_text(module, *texts)
    feeds, stages = (planted, None) if module is batch_feed else (batch_feed, planted)
    assert any(stale_reads(seed, feeds=feeds, stages=stages) for seed in range(300))


def with_text(module: ModuleType, *texts: str) -> ModuleType:
    """Return the module with some of its text replaced."""
    code = Path(str(module.__file__)).read_text()
    for old, new in zip(texts[::2], texts[1::2], strict=True):
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    made = ModuleType(module.__name__)
    exec(compile(code, "planted", "exec"), made.__dict__)
    return made
