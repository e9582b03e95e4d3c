"""Slots that a GPU copies from: page-locked once, released in time, unlocked at the end; the host copies no pixels."""

from __future__ import annotations

import gc
import itertools
import os
import tracemalloc
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from make_planner import make_planner
from memory_source import MemorySource
from photo_folder import photo
from processes import eventually
from strict_copies import META, StrictCopies
from stub_cuda import StubCudart
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from penstock.loaders.make.engine_contract import Engine
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.run.engine import slots
from penstock.loaders.run.engine.choose import open_engine
from penstock.loaders.run.engine.process_engine import ProcessOptions
from penstock.loaders.run.engine.slots import BatchSlots
from penstock.loaders.run.feed.batch_feed import DeviceFeed
from penstock.loaders.system import recycled_memory
from penstock.pipelines import imagenet_train
from penstock.pipelines.batch.stage import BatchStage

SIZE, BATCH = 64, 8
OPTIONS = {
    "threads": {"workers": 2, "workers_are": "threads"},
    "processes": {"workers": 1, "workers_are": "processes"},
    "in the process": {"workers": 0},
}


@pytest.fixture
def cudart(monkeypatch: pytest.MonkeyPatch) -> StubCudart:
    return StubCudart(monkeypatch)


@pytest.fixture(scope="module")
def source() -> MemorySource:
    return MemorySource([photo(number) for number in range(40)])


def engine_of(source: MemorySource, kind: str, device: str = "cuda:3") -> Engine:
    settings = make_planner(source, {"batch_size": BATCH}, device=device, pipeline=imagenet_train(SIZE))
    return open_engine("torch", settings, ProcessOptions(**OPTIONS[kind], prefetch=2))


class LockedCopies(StrictCopies):
    """The strict engine, for which memory locked by CUDA is pinned; `pixels` counts what it had to pin itself."""

    def __init__(self, cudart: StubCudart) -> None:
        super().__init__()
        self._cudart, self.pixels = cudart, 0

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        self.pixels += like.ndim == 4
        return super().pinned(like)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and not tensor.is_meta and self._cudart.holds(tensor):
                self.lock(tensor)
        return super().__torch_dispatch__(func, types, args, kwargs)


class NoPixelsOnTheHost(TorchDispatchMode):
    """Refuses operations that write images to host memory, in addition to the strict engine's own mode."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and not func.is_view and not tensor.is_meta:
                assert tensor.numel() < SIZE * SIZE, f"{func} makes or writes pixels"
        return result


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_consumer_writes_no_pixels_and_never_lacks_a_slot(
    source: MemorySource, cudart: StubCudart, kind: str
) -> None:
    engine, copies = engine_of(source, kind), LockedCopies(cudart)
    feed = DeviceFeed(engine.next, engine.ready, BatchStage(imagenet_train(SIZE), torch.float16, META), copies=copies)
    engine.seek(Cursor(0, 0))
    assert len(cudart.locked) == 1
    feed.next()
    tracemalloc.start()
    try:
        with nullcontext() if kind == "in the process" else NoPixelsOnTheHost():  # here the consumer makes them itself
            for _ in range(12):
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                feed.next()
                made = tracemalloc.get_traced_memory()[1] - before
                assert kind != "processes" or made < BATCH * SIZE * SIZE * 3  # NumPy arrays are traced, also in threads
    finally:
        tracemalloc.stop()
    assert copies.pixels == 0
    assert copies.uploaded >= 13 * BATCH * SIZE * SIZE * 3
    engine.close()
    assert len(cudart.locked) == 1  # the device may still read
    feed.close()
    assert not cudart.locked


def test_the_budget_detects_a_copy_of_a_slot(
    source: MemorySource, cudart: StubCudart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchSlots, "pin", lambda *_: None)
    with pytest.raises(AssertionError):
        test_the_consumer_writes_no_pixels_and_never_lacks_a_slot(source, StubCudart(monkeypatch), "threads")


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_dropped_engine_unlocks_its_memory(source: MemorySource, cudart: StubCudart, kind: str) -> None:
    engine = engine_of(source, kind)
    engine.seek(Cursor(0, 0))
    batch = engine.next()
    assert batch.pinned
    assert cudart.holds(batch.images)
    engine.close()
    kept = batch.images.clone()
    assert torch.equal(batch.images, kept)
    assert cudart.locked
    del batch, engine
    assert eventually(lambda: gc.collect() >= 0 and not cudart.locked)


def test_ten_engines_leave_nothing_locked(source: MemorySource, cudart: StubCudart) -> None:
    for _ in range(10):
        engine = engine_of(source, "in the process")
        engine.seek(Cursor(0, 0))
        engine.next()
        engine.close()
    gc.collect()
    assert not cudart.locked


def test_a_cpu_loader_locks_no_memory(source: MemorySource, cudart: StubCudart) -> None:
    engine = engine_of(source, "threads", device="cpu")
    engine.seek(Cursor(0, 0))
    assert not engine.next().pinned
    assert not cudart.locked
    engine.close()


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> StubCudart:
    return StubCudart(monkeypatch, status=2)


def test_if_locking_fails_the_feed_copies_and_warns(source: MemorySource, refused: StubCudart) -> None:
    engine, copies = engine_of(source, "threads"), LockedCopies(refused)
    feed = DeviceFeed(engine.next, engine.ready, BatchStage(imagenet_train(SIZE), torch.float16, META), copies=copies)
    with pytest.warns(RuntimeWarning, match=r"cannot be page-locked \(CUDA error 2\)"):
        engine.seek(Cursor(0, 0))
    assert refused.kernels == 1  # it has cleared CUDA's error state
    for _ in range(8):
        feed.next()
    assert 1 <= copies.pixels <= 3
    engine.close()
    feed.close()


def test_without_cuda_locking_fails_with_the_same_message() -> None:
    if torch.cuda.is_available():
        pytest.skip("this torch has CUDA")
    with pytest.warns(RuntimeWarning, match="cannot be page-locked"):
        assert not slots.page_lock(np.zeros(4096, np.uint8), "cuda:0")


def test_a_forked_child_unlocks_nothing(cudart: StubCudart) -> None:
    cudart.locked[4096], cudart.locked_on[4096] = 1, "cuda:3"
    slots._unlock(4096, "cuda:3", os.getpid() + 1)
    assert cudart.locked
    slots._unlock(4096, "cuda:3", os.getpid())
    assert not cudart.locked


def test_slots_in_flight_at_a_fork_are_used_again(source: MemorySource, cudart: StubCudart) -> None:
    """On a CPU they are not, because a child may hold the consumer's batches. Here only the feed has them."""
    engine = engine_of(source, "processes")
    engine.seek(Cursor(0, 0))
    for _ in itertools.repeat(None, 20):
        batch = engine.next()
        assert batch.pinned
        recycled_memory._leave_all_to_children()
        del batch
    engine.close()
