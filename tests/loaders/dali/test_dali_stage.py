"""The stage that drives DALI, with a fake graph: whole batches stay where they are made, mixed ones are joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from strict_copies import META, StrictCopies

from penstock.loaders.dali import dali_stage
from penstock.loaders.dali.dali_stage import DaliStage, Finished
from penstock.loaders.make.layout import image_layout
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.run.engine.slots import BatchSlots
from penstock.loaders.run.engine.work_items import Produced, WorkItem
from penstock.loaders.run.feed.batch_feed import DeviceFeed
from penstock.loaders.system.recycled_memory import Recycler
from penstock.pipelines import imagenet_train
from penstock.pipelines.batch.stage import BatchStage
from penstock.pipelines.sample.dali_graph import CropTask, GraphSettings

BATCH, SIZE = 5, 8
LAYOUT = image_layout((imagenet_train(SIZE),), BATCH)


def pixels_of(slots: BatchSlots) -> Any:
    return LAYOUT.arrays(slots.memory[1])[0]


class FakeGraph:
    """A graph that returns images on `device`, each filled with the first byte of its task."""

    device = torch.device("cpu")

    def __init__(self, settings: GraphSettings, *, coded: bool) -> None:
        self._batches: list[torch.Tensor] = []

    def feed(self, tasks: list[CropTask]) -> None:
        values = torch.tensor([np.frombuffer(task.data, np.uint8)[0] for task in tasks], dtype=torch.uint8)
        self._batches.append(values[:, None, None, None].expand(-1, SIZE, SIZE, 3).contiguous().to(self.device))

    def take(self) -> torch.Tensor:
        return self._batches.pop(0)

    def close(self) -> None:
        self._batches.clear()


class HostCopies(StrictCopies):
    """A strict copy engine over host memory, so that values can be read."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def task(value: int, *, coded: bool) -> CropTask:
    data = bytes([value]) * 9 if coded else np.full((SIZE, SIZE, 3), value, np.uint8)
    return CropTask(data, (0, 0, SIZE, SIZE), False)


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Finished, BatchSlots, StrictCopies]]:
    """Return a function that runs a batch with DALI on `device`; kinds: each row's decoder (jpeg, pixels, slot)."""
    monkeypatch.setattr(dali_stage, "DaliGraph", FakeGraph)

    def run(kinds: list[str], *, device: torch.device, on_gpu: bool) -> tuple[Finished, BatchSlots, StrictCopies]:
        monkeypatch.setattr(FakeGraph, "device", device)
        slots = BatchSlots(3, LAYOUT, shared=False)
        pixels_of(slots)[...] = (100 + np.arange(BATCH, dtype=np.uint8))[:, None, None, None]
        settings = GraphSettings(
            size=(SIZE, SIZE), batch_size=BATCH, threads=1, depth=1, device_id=0 if on_gpu else None
        )
        copies = StrictCopies() if device == META else HostCopies()
        stage = DaliStage(settings, slots, lambda _: None, lambda _: LAYOUT, copies=copies)  # type: ignore[arg-type, return-value]
        tasks = tuple((row, task(row, coded=kind == "jpeg")) for row, kind in enumerate(kinds) if kind != "slot")
        stage.send(Produced(WorkItem(0, Cursor(0, 0), 1), tasks=tasks))
        done = stage.receive()
        assert done.produced.error is None, done.produced.error
        return done, slots, copies

    return run


MIXED = {
    "a host row": ["jpeg", "jpeg", "slot", "jpeg", "jpeg"],
    "one row of DALI": ["slot", "slot", "slot", "jpeg", "slot"],
    "all three": ["pixels", "slot", "jpeg", "jpeg", "pixels"],
    "two graphs": ["pixels", "jpeg", "jpeg", "jpeg", "pixels"],
}


@pytest.mark.parametrize("name", MIXED)
def test_one_unsupported_image_leaves_the_batch_on_the_device(name: str, finished: Any) -> None:
    """Rows that Penstock decoded are copied to the device; the others are not copied to the host."""
    done, _, copies = finished(MIXED[name], device=META, on_gpu=True)
    assert done.images is not None
    assert done.images.is_meta
    assert (done.images.shape, done.images.dtype) == ((BATCH, SIZE, SIZE, 3), torch.uint8)
    assert copies.uploaded == MIXED[name].count("slot") * SIZE * SIZE * 3
    assert copies.waited == [1]  # complete before it is handed over


@pytest.mark.parametrize("on_gpu", [False, True], ids=["CPU", "GPU"])
@pytest.mark.parametrize("name", MIXED)
def test_each_row_comes_from_its_decoder(name: str, on_gpu: bool, finished: Any) -> None:
    done, slots, _ = finished(MIXED[name], device=torch.device("cpu"), on_gpu=on_gpu)
    assert (done.images is not None) == on_gpu
    images = done.images.numpy() if on_gpu else pixels_of(slots)
    expected = [100 + row if kind == "slot" else row for row, kind in enumerate(MIXED[name])]
    assert images.min((1, 2, 3)).tolist() == images.max((1, 2, 3)).tolist() == expected


def test_whole_batches_are_handed_on_unchanged(finished: Any) -> None:
    done, _, copies = finished(["jpeg"] * BATCH, device=META, on_gpu=True)
    assert done.images.is_meta
    assert not copies.marks
    done, slots, copies = finished(["slot"] * BATCH, device=META, on_gpu=True)
    assert done.images is None  # copied by the feed, like any other batch on the host
    assert pixels_of(slots)[:, 0, 0, 0].tolist() == [100, 101, 102, 103, 104]


def test_a_mixed_batch_becomes_a_resident_one(finished: Any) -> None:
    done, slots, _ = finished(MIXED["all three"], device=META, on_gpu=True)
    recycler = Recycler(3)
    recycler.take(), recycler.take()
    batch = slots.hand_out(done.produced, LAYOUT, recycler, done.images)
    assert batch.resident
    assert len(recycler) == 2  # the slot is free already
    copies = StrictCopies()
    feed = DeviceFeed(lambda: batch, lambda: 0, BatchStage(imagenet_train(SIZE), torch.float16, META), copies=copies)
    assert feed.next().images.is_meta
    assert not copies.uploaded
