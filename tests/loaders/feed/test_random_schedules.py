"""The feed on a simulated device: whatever order its streams run in, nobody reads what is not there yet, or no more."""

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
from penstock.loaders.feed import batch_feed
from penstock.loaders.stream.engine_contract import Cursor, HostBatch
from penstock.pipelines import imagenet_train
from penstock.pipelines.batch.stage import BatchStage

META = torch.device("meta")
BATCH, SIZE = 2, 4
# PENSTOCK_SCHEDULES=10000 runs what the gate runs a part of.
SCHEDULES = int(os.environ.get("PENSTOCK_SCHEDULES", "100"))


class Source:
    """Batches of host memory or of a backend's on the device; both are written to again once nobody looks at them."""

    def __init__(self, device: SimulatedDevice, draw: random.Random) -> None:
        self._device, self._draw, self._number = device, draw, 0
        self._resident, self._pinned = draw.choice((0.0, 0.5, 1.0)), draw.choice((0.0, 0.5, 1.0))
        self.join: Callable[[torch.Tensor], torch.Tensor] = lambda images: images

    def __call__(self) -> HostBatch:
        self._number += 1
        resident = self._draw.random() < self._resident
        pinned = not resident and self._draw.random() < self._pinned
        images = torch.empty(BATCH, SIZE, SIZE, 3, dtype=torch.uint8, device=META if resident else "cpu")
        images = self._device.own(images, "backend")
        if resident:
            images = self.join(images)
        zeros = np.zeros(BATCH, np.int64)
        cursor = Cursor(0, self._number * BATCH)
        geometry = zeros[:, None], zeros > 0, zeros[:, None], zeros
        batch = HostBatch(cursor, images, zeros, zeros, *geometry, (), 0.0, resident, pinned=pinned)
        return replace(batch, when_read=mark_unwritten) if resident else batch


def stale_reads(
    seed: int, feeds: ModuleType = batch_feed, copies: type[SimulatedCopies] = SimulatedCopies, stages: Any = None
) -> int:
    """Serve some batches to a consumer that is slow, holds on to some, and leaves early; count what went wrong."""
    draw = random.Random(seed)
    device = SimulatedDevice(seed)
    with device:
        source = Source(device, draw)
        if stages is not None:
            source.join = lambda images: joined(stages, copies(device, "dali"), images)
        staged = BatchStage(imagenet_train(SIZE), draw.choice((torch.uint8, torch.bfloat16)), META)
        feed = feeds.DeviceFeed(
            source, lambda: draw.randrange(3), staged, ahead=draw.randrange(4), copies=copies(device)
        )
        held = []
        for _ in range(draw.randrange(1, 9)):
            batch = feed.next()
            _ = batch.images.float().sum() + batch.labels.sum()  # the step
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
        torch.empty(1, device=META)  # takes back what is gone
        device.drain()
    return device.stale


def joined(stages: Any, copies: SimulatedCopies, images: torch.Tensor) -> torch.Tensor:
    """A batch of which the first row was decoded on the host, as the stage of the dali backend joins it."""
    stage = stages.DaliStage.__new__(stages.DaliStage)
    stage._copies = copies
    result: torch.Tensor = stage._on_device(np.zeros((BATCH, SIZE, SIZE, 3), np.uint8), [([1], images[1:])])
    return result


def test_no_order_of_the_streams_reads_what_is_not_there() -> None:
    assert [seed for seed in range(SCHEDULES) if stale_reads(seed)] == []


def test_nor_where_the_dali_stage_joins_rows() -> None:
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
    "copies",
    [
        DoesNotWait,
        DoesNotRecord,
        HostDoesNotWait,
        MarksTheConsumersStream,
        WorksOnTheConsumersStream,
    ],
)
def test_a_bug_of_the_engine_is_found(copies: type[SimulatedCopies]) -> None:
    assert any(stale_reads(seed, copies=copies) for seed in range(300))


# name -> (module, its text, what a bug makes of it)
BUGS = {
    "a slot is filled while it is read": (
        batch_feed,
        "        if len(self._slots) > self._ahead:",
        "        if False:",
    ),
    "a slot of the engine goes back while it is read": (
        batch_feed,
        "            return ready, done",
        "            slot.images = slot.images if batch.resident else ()\n            return ready, done",
    ),
    "a slot counts as read before its copies": (
        batch_feed,
        "        with copies.side():\n            images",
        "        slot.busy_until = copies.mark()\n        with copies.side():\n            images",
    ),
    "resident pixels are let go at once": (
        batch_feed,
        "done if batch.resident else slot.busy_until",
        "slot.busy_until",
    ),
    "the memory is marked as read after the event": (
        batch_feed,
        "                batch.when_read(images[0])\n            done = copies.mark()\n",
        "                pass\n            done = copies.mark()\n            (batch.when_read or id)(*images)\n",
    ),
    "resident pixels are handed out themselves": (
        batch_feed,
        "staged = tuple(view.clone() for view in staged)",
        "pass",
    ),
    "nobody waits at the end": (batch_feed, "        slots[0].free()\n", ""),
    "joined rows are handed on before they are there": (dali_stage, "        copies.wait_on_host(done)\n", ""),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_of_the_code_is_found(name: str) -> None:
    module, text, bug = BUGS[name]
    planted = with_text(module, text, bug)
    if "counts as read" in name:  # and is not marked again
        planted = with_text(module, text, bug, "slot.busy_until = copies.mark()  # a pinned", "pass  # a pinned")
    feeds, stages = (planted, None) if module is batch_feed else (batch_feed, planted)
    assert any(stale_reads(seed, feeds=feeds, stages=stages) for seed in range(300))


def with_text(module: ModuleType, *texts: str) -> ModuleType:
    """The module with other text in the place of some of its own."""
    code = Path(str(module.__file__)).read_text()
    for old, new in zip(texts[::2], texts[1::2], strict=True):
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    made = ModuleType(module.__name__)
    exec(compile(code, "planted", "exec"), made.__dict__)
    return made
