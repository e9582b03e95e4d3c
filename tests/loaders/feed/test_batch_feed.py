"""DeviceFeed: batches in order, sent ahead only when finished, never over memory that the device still reads."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photo_folder import write_folder
from strict_copies import META, StrictCopies

from penstock.loaders import create_loader
from penstock.loaders.feed.batch_feed import DeviceBatch, DeviceFeed
from penstock.loaders.feed.copies import CudaCopyEngine
from penstock.loaders.stream.engine_contract import Cursor, HostBatch
from penstock.pipelines import imagenet_train
from penstock.pipelines.batch.stage import BatchStage
from penstock.pipelines.plan.augmentations import BatchKey
from penstock.pipelines.spec import Augmentations

SIZE = 8
BATCH = 4
MARK = 197


def host_batch(number: int, *, batch: int = BATCH, size: int = SIZE) -> HostBatch:
    """A batch whose every pixel and label is `number`."""
    index = np.arange(batch, dtype=np.int64) + number * batch
    return HostBatch(
        cursor=Cursor(0, number * batch),
        images=torch.full((batch, size, size, 3), number % 256, dtype=torch.uint8),
        index=index,
        labels=np.full(batch, number, np.int64),
        windows=np.zeros((batch, 4), np.int32),
        flips=np.zeros(batch, np.bool_),
        bad=(),
        produce_s=0.0,
    )


class Numbers:
    """A source of batches 0, 1, 2, ...; raises `errors[k]` in the place of batch k."""

    def __init__(self, errors: dict[int, BaseException] | None = None, **shape: int) -> None:
        self.taken, self._errors, self._shape = 0, errors or {}, shape

    def __call__(self) -> HostBatch:
        number, self.taken = self.taken, self.taken + 1
        if number in self._errors:
            raise self._errors[number]
        return host_batch(number, **self._shape)


class RecordedCopies:
    """A CopyEngine without a device: writes down what is asked of it, and that no pinned memory changes too early.

    An "event" holds what the pinned memory was when it was recorded: until the host has waited for it, the device may
    still be reading that.
    """

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []
        self.memory: list[torch.Tensor] = []
        self._events, self._inside = 0, False
        self.pending: dict[int, list[torch.Tensor]] = {}

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        self.memory.append(torch.zeros_like(like))
        return self.memory[-1]

    @contextmanager
    def side(self) -> Iterator[None]:
        assert not self._inside
        self._inside = True
        yield
        self._inside = False

    def mark(self) -> int:
        assert self._inside, "an event of the consumer's stream"
        event, self._events = self._events, self._events + 1
        self.log.append(("mark", event))
        self.pending[event] = [memory.clone() for memory in self.memory]
        return event

    def wait_on_host(self, event: int) -> None:
        assert not self._inside
        self.log.append(("wait", event))
        del self.pending[event]

    def hand_over(self, event: int, tensors: tuple[torch.Tensor, ...]) -> None:
        assert not self._inside
        assert len(tensors) == 2
        self.log.append(("hand over", event))

    def of(self, kind: str) -> list[int]:
        return [event for name, event in self.log if name == kind]


def stage(dtype: torch.dtype = torch.float32, device: str = "cpu", size: int = SIZE) -> BatchStage:
    return BatchStage(imagenet_train(size), dtype, torch.device(device))


def feed_of(
    source: Callable[[], HostBatch], ready: Callable[[], int], ahead: int = 2
) -> tuple[DeviceFeed, RecordedCopies]:
    copies = RecordedCopies()
    return DeviceFeed(source, ready, stage(), ahead=ahead, copies=copies), copies


def check(batch: DeviceBatch, number: int) -> None:
    """That this is batch `number`, normalised."""
    assert batch.labels.tolist() == [number] * BATCH
    assert batch.host.cursor == Cursor(0, number * BATCH)
    assert batch.host.index.tolist() == host_batch(number).index.tolist()
    assert torch.equal(batch.images, stage()(host_batch(number).images))


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
def test_order_and_values_are_the_sources_whatever_is_ready(ahead: int) -> None:
    draw = np.random.default_rng(ahead)
    feed, _ = feed_of(Numbers(), lambda: int(draw.integers(0, 3)), ahead)
    for number in range(60):
        check(feed.next(), number)


def mark(images: torch.Tensor) -> None:
    images.fill_(MARK)


class ResidentNumbers(Numbers):
    """The same batches, made on the device or pinned: in memory that is used again when no tensor over it is left."""

    def __init__(self, kind: str = "resident") -> None:
        super().__init__()
        self._kind = kind
        self.alive: dict[int, weakref.ref[torch.Tensor]] = {}

    def __call__(self) -> HostBatch:
        number, batch = self.taken, super().__call__()
        self.alive[number] = weakref.ref(batch.images)
        changes: dict[str, Any] = {"when_read": mark} if self._kind == "resident" else {}
        return replace(batch, **{self._kind: True}, **changes)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
def test_a_resident_batch_is_kept_until_the_device_has_read_it_and_its_pixels_take_no_detour(
    dtype: torch.dtype,
) -> None:
    source, copies = ResidentNumbers(), RecordedCopies()
    feed = DeviceFeed(source, lambda: 1, stage(dtype), ahead=1, copies=copies)
    handed_out = []
    for number in range(6):
        handed_out.append(feed.next())
        assert handed_out[-1].labels.tolist() == [number] * BATCH
    for number, batch in enumerate(handed_out):  # not sooner: their memory is not used again
        assert torch.equal(batch.images, stage(dtype)(host_batch(number).images))
    assert {tuple(memory.shape) for memory in copies.memory} == {(BATCH,)}  # labels alone are pinned
    # Two slots: batches 5 and 6 are in them. Those before went after the host had waited for their one event each.
    assert [number for number, images in source.alive.items() if images() is not None] == [5, 6]
    assert copies.of("mark") == list(range(7))
    assert copies.of("wait") == list(range(5))
    storages = {batch.images.untyped_storage().data_ptr() for batch in handed_out}
    assert len(storages) == len(handed_out)
    assert not storages & {images().untyped_storage().data_ptr() for k, images in source.alive.items() if k > 4}  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
def test_resident_memory_goes_back_marked_as_read_and_no_batch_shows_it(dtype: torch.dtype) -> None:
    source = ResidentNumbers()
    memory = []
    feed = DeviceFeed(
        lambda: memory.append(made := source()) or made, lambda: 1, stage(dtype), ahead=1, copies=RecordedCopies()
    )
    batches = [feed.next() for _ in range(5)]
    assert all((made.images == MARK).all() for made in memory)
    assert not any((batch.images == MARK).any() for batch in batches)


def test_a_pinned_batch_is_copied_from_where_it_lies_and_let_go_once_that_is_done() -> None:
    source, copies = ResidentNumbers("pinned"), RecordedCopies()
    feed = DeviceFeed(source, lambda: 1, stage(), ahead=1, copies=copies)
    here = []
    undisturbed = source.__call__

    def look() -> HostBatch:  # how many batches lie in slots of the engine when it is asked for another one
        here.append(sum(images() is not None for images in source.alive.values()))
        return undisturbed()

    feed._source = look
    for number in range(6):
        check(feed.next(), number)
    assert {tuple(memory.shape) for memory in copies.memory} == {(BATCH,)}  # labels alone are copied on the host
    assert here == [0, 1, 1, 1, 1, 1, 1]  # fewer than the spare slots
    assert copies.of("wait") == [0, 2, 4, 6, 8]  # the events behind the copies, not those behind the batch stage
    feed.close()
    assert not any(images() is not None for images in source.alive.values())


def test_resident_and_host_batches_may_alternate() -> None:
    source = Numbers()
    feed, copies = feed_of(lambda: replace(batch := source(), resident=batch.labels[0] % 2 == 0), lambda: 1)
    for number in range(20):
        check(feed.next(), number)
    assert len([m for m in copies.memory if m.ndim == 4]) <= 3


@pytest.mark.parametrize(("ahead", "ready"), [(0, 1), (1, 1), (3, 1), (2, 0)])
def test_at_most_so_many_are_sent_ahead_and_nothing_that_is_not_finished(ahead: int, ready: int) -> None:
    source = Numbers()
    feed, _ = feed_of(source, lambda: ready, ahead)
    for number in range(20):
        check(feed.next(), number)
        assert source.taken - (number + 1) == ahead * ready


def test_what_is_ready_is_asked_before_each_batch_that_is_sent_ahead() -> None:
    source, finished = Numbers(), [2]

    def ready() -> int:
        left = finished[0]
        finished[0] -= 1
        return max(0, left)

    feed, _ = feed_of(source, ready, ahead=5)
    feed.next()  # one that was waited for, two that were ready
    assert source.taken == 3


def test_pinned_memory_is_refilled_only_after_the_copy_out_of_it() -> None:
    feed, copies = feed_of(Numbers(), lambda: 1, ahead=2)
    slots = 3
    for number in range(20):
        before = {event: [m.clone() for m in held] for event, held in copies.pending.items()}
        feed.next()
        sent = number + 3
        # two events a batch: after its copies, which frees the slot, and after its batch stage
        assert len(copies.of("mark")) == 2 * sent
        refilled = max(0, sent - slots)
        assert copies.of("wait") == [2 * earlier for earlier in range(refilled)]
        assert len(copies.memory) == 2 * min(sent, slots)  # images and labels
        for event, held in copies.pending.items():
            if event % 2 == 0 and event in before:  # not waited for: its slot is as it was
                place = event // 2 % slots
                assert torch.equal(copies.memory[2 * place], held[2 * place])
                assert torch.equal(copies.memory[2 * place + 1], held[2 * place + 1])


def test_the_wait_comes_before_the_refill() -> None:
    feed, copies = feed_of(Numbers(), lambda: 0, ahead=0)
    seen = []
    wait = copies.wait_on_host

    def look(event: int) -> None:
        seen.append(int(copies.memory[0][0]))  # the label that lies in the only slot
        wait(event)

    copies.wait_on_host = look  # type: ignore[method-assign]
    for _ in range(5):
        feed.next()
    assert seen == [0, 1, 2, 3]


def test_a_batch_is_handed_over_by_its_own_last_event_before_it_is_given_out() -> None:
    feed, copies = feed_of(Numbers(), lambda: 1)
    for number in range(12):
        feed.next()
        assert copies.of("hand over") == [2 * earlier + 1 for earlier in range(number + 1)]


def test_an_error_is_raised_in_its_place_after_the_batches_before_it() -> None:
    error = ValueError("broken")
    source = Numbers({3: error})
    feed, _ = feed_of(source, lambda: 1, ahead=4)
    for number in range(3):
        check(feed.next(), number)
        assert source.taken == 4  # nothing is sent ahead past an error
    with pytest.raises(ValueError, match="broken") as caught:
        feed.next()
    assert caught.value is error
    check(feed.next(), 4)  # what comes after is the source's business


def test_an_interrupt_is_not_kept_for_later() -> None:
    feed, _ = feed_of(Numbers({2: KeyboardInterrupt()}), lambda: 1, ahead=2)
    with pytest.raises(KeyboardInterrupt):
        feed.next()


def test_flush_forgets_what_is_under_way_and_keeps_the_memory_safe() -> None:
    source = Numbers()
    feed, copies = feed_of(source, lambda: 1, ahead=2)
    check(feed.next(), 0)
    feed.flush()
    source.taken = 50
    check(feed.next(), 50)
    check(feed.next(), 51)
    assert len(copies.memory) == 6
    assert copies.of("wait") == [0, 2, 4, 6]  # the dropped batches' copies as well


@pytest.mark.parametrize("ending", ["closed", "dropped"])
def test_what_the_device_still_reads_is_waited_for_at_the_end(ending: str) -> None:
    """A backend writes into the memory of its resident batches as soon as the last tensor over it is gone."""
    source, copies = ResidentNumbers(), RecordedCopies()
    feed = DeviceFeed(source, lambda: 1, stage(), ahead=2, copies=copies)
    feed.next()
    seen = []
    wait = copies.wait_on_host

    def look(event: int) -> None:
        wait(event)
        seen.append([number for number, images in source.alive.items() if images() is not None])

    copies.wait_on_host = look  # type: ignore[method-assign]
    if ending == "closed":
        feed.close()
        feed.close()
    del feed
    gc.collect()
    assert copies.of("wait") == [0, 1, 2]
    assert seen == [[0, 1, 2], [1, 2], [2]]
    assert [images() for images in source.alive.values()] == [None] * 3


@pytest.mark.parametrize("copies", [None, RecordedCopies()], ids=["CPU", "device"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
def test_batches_of_a_consumer_in_inference_mode_may_be_trained_on_later(
    dtype: torch.dtype, copies: RecordedCopies | None
) -> None:
    feed = DeviceFeed(Numbers(), lambda: 1, stage(dtype), ahead=2, copies=copies)
    with torch.inference_mode():
        batches = [feed.next()]
    batches += [feed.next() for _ in range(6)]  # some were sent in inference mode, some go into its pinned memory
    assert not any(tensor.is_inference() for batch in batches for tensor in (batch.images, batch.labels))


def test_pixels_of_the_host_are_let_go_once_they_are_copied() -> None:
    feed, _ = feed_of(Numbers(), lambda: 0)
    assert feed.next().host.images.shape == (0, SIZE, SIZE, 3)


def test_on_a_cpu_batches_pass_straight_through() -> None:
    source = Numbers()
    feed = DeviceFeed(source, lambda: 1, stage(), ahead=3)
    kept = [feed.next() for _ in range(8)]  # more than are recycled
    for number, batch in enumerate(kept):
        check(batch, number)
    assert source.taken == 8
    raw = DeviceFeed(Numbers(), lambda: 1, stage(torch.uint8)).next()
    assert torch.equal(raw.images, host_batch(0).images.permute(0, 3, 1, 2))
    failing = DeviceFeed(Numbers({0: ValueError("broken")}), lambda: 1, stage())
    with pytest.raises(ValueError, match="broken"):
        failing.next()


def test_on_a_cpu_memory_of_results_is_used_again() -> None:
    feed = DeviceFeed(Numbers(), lambda: 0, stage())
    addresses = {feed.next().images.data_ptr() for _ in range(20)}
    assert len(addresses) <= 3


# ---- a device without values ----


@pytest.mark.parametrize("kind", ["plain", "pinned", "resident"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16], ids=str)
@pytest.mark.parametrize("augmented", [False, True])
def test_pixels_go_by_pinned_memory_to_the_device_and_stay_there(
    augmented: bool, dtype: torch.dtype, kind: str
) -> None:
    augment = AUGMENTS["operations"] if augmented else Augmentations()
    copies, source = StrictCopies(), Numbers()
    staged = BatchStage(imagenet_train(SIZE, augment=augment), dtype, META)
    made = {
        "plain": source,
        "pinned": lambda: replace(batch := source(), images=copies.lock(batch.images), pinned=True),
        "resident": lambda: replace(batch := source(), images=batch.images.to(META), resident=True),
    }
    feed = DeviceFeed(made[kind], lambda: 1, staged, ahead=2, copies=copies)
    with torch.inference_mode():
        feed.next()
    for _ in range(9):
        batch = feed.next()
        assert (batch.images.shape, batch.images.dtype) == ((BATCH, 3, SIZE, SIZE), dtype)
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
    feed.close()
    assert copies.uploaded == (0 if kind == "resident" else 12 * BATCH * SIZE * SIZE * 3)
    assert copies.handed_over == sorted(copies.handed_over)
    assert len(copies.waited) == 12  # each slot's last use


def test_the_strict_engine_objects_to_pixels_of_pageable_memory() -> None:
    copies = StrictCopies()
    copies.pinned = lambda like: like  # type: ignore[method-assign]
    feed = DeviceFeed(Numbers(), lambda: 1, BatchStage(imagenet_train(SIZE), torch.uint8, META), copies=copies)
    with pytest.raises(AssertionError, match="pageable"):
        feed.next()


# ---- augmentations ----

AUGMENTS = {
    "operations": Augmentations(auto_augment="rand", color_jitter=(0.4, 0.4, 0.4, 0.1), erasing=0.5),
    "mixing": Augmentations(auto_augment="trivial", mixup=0.4, cutmix=1.0),
}


def textured(number: int) -> HostBatch:
    """Batch `number` with pixels of its own, in epoch 3 and with padding in the last row, or in the first two too."""
    pixels = np.random.default_rng(number).integers(0, 256, (BATCH, SIZE, SIZE, 3), np.uint8)
    index = np.append(np.arange(BATCH - 1, dtype=np.int64) + number * BATCH, -1)
    labels = np.append(np.arange(BATCH - 1, dtype=np.int64), -1)
    index[: 2 * (number % 2)] = labels[: 2 * (number % 2)] = -1
    return replace(host_batch(number), cursor=Cursor(3, 0), images=torch.from_numpy(pixels), index=index, labels=labels)


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize("name", AUGMENTS)
@pytest.mark.parametrize("pad", [True, False])
def test_both_ways_of_a_batch_apply_the_plan_of_its_samples(
    name: str, dtype: torch.dtype, resident: bool, pad: bool
) -> None:
    """By the seed of the feed, the epoch and the indices of the batch, whichever way it takes, with padding or not."""
    augment = AUGMENTS[name] if dtype != torch.uint8 else replace(AUGMENTS[name], mixup=0.0, cutmix=0.0)
    pipeline = imagenet_train(SIZE, augment=augment)
    staged = BatchStage(pipeline, dtype, torch.device("cpu"), num_classes=5)
    seen = []
    for copies in (None, RecordedCopies()):
        numbers = itertools.count()
        source = lambda numbers=numbers: replace(textured(next(numbers)), resident=resident)  # noqa: E731
        feed = DeviceFeed(source, lambda: 1, staged, seed=9, pad=pad, ahead=1, copies=copies)
        seen.append([feed.next() for _ in range(5)])
    changed = 0
    for number, (here, there) in enumerate(zip(*seen, strict=True)):
        host = textured(number)
        plan = staged.plan(BatchKey(9, 3, host.index))
        images, labels = staged(host.images, None, plan), staged.targets(torch.from_numpy(host.labels), plan)
        for batch in (here, there):
            served = host.index >= (-1 if pad else 0)
            assert torch.equal(batch.images, images[served])
            assert torch.equal(batch.labels, labels[served])
            assert batch.images.is_contiguous(memory_format=torch.channels_last)
            assert batch.host.labels.tolist() == host.labels[served].tolist()
        changed += not torch.equal(images, stage(dtype)(host.images))
        assert labels.shape == ((BATCH, 5) if staged.plan(BatchKey(0, 0, host.index)).mixing else (BATCH,))  # type: ignore[union-attr]
        assert torch.equal(images[-1], stage(dtype)(host.images)[-1])  # padding
    assert changed >= 3


# ---- on a GPU ----


class TimedCopies(CudaCopyEngine):
    """CudaCopyEngine that notes when the work of each batch began and ended on the side stream."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def side(self) -> Iterator[None]:
        with super().side():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            yield
            end.record()
            self.spans.append((start, end))


def busy_for(matrix: torch.Tensor, repeats: int) -> None:
    for _ in range(repeats):
        torch.mm(matrix, matrix, out=torch.empty_like(matrix))


def repeats_for(matrix: torch.Tensor, wanted_ms: float) -> int:
    """How often `matrix` is multiplied by itself in that time."""
    busy_for(matrix, 3)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    busy_for(matrix, 10)
    end.record()
    end.synchronize()
    return max(1, round(wanted_ms / (start.elapsed_time(end) / 10)))


@pytest.mark.gpu
def test_transfers_overlap_compute() -> None:
    """The copies of the batches to come lie inside the time in which the device computes on the one in hand."""
    device, batch, size = torch.device("cuda"), 128, 224
    copies = TimedCopies(device)
    one = host_batch(1, batch=batch, size=size)
    feed = DeviceFeed(lambda: one, lambda: 1, stage(torch.float16, "cuda", size), ahead=2, copies=copies)
    matrix = torch.randn(4096, 4096, device=device)
    repeats = repeats_for(matrix, 60.0)  # longer than the host takes to fill a pinned slot
    for _ in range(4):
        feed.next()
    torch.cuda.synchronize()
    origin = torch.cuda.Event(enable_timing=True)
    origin.record()
    copies.spans.clear()
    computing = []
    for _ in range(12):
        feed.next()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        busy_for(matrix, repeats)
        end.record()
        computing.append((start, end))
    torch.cuda.synchronize()

    def interval(span: tuple[torch.cuda.Event, torch.cuda.Event]) -> tuple[float, float]:
        return origin.elapsed_time(span[0]), origin.elapsed_time(span[1])

    steps = [interval(span) for span in computing]
    transfers = [interval(span) for span in copies.spans[1:-1]]
    inside = [any(a <= start and end <= b for a, b in steps) for start, end in transfers]
    assert len(transfers) >= 8
    assert sum(inside) >= 0.8 * len(inside), (steps, transfers)


@pytest.mark.gpu
@pytest.mark.parametrize("augmented", [False, True])
def test_a_step_does_not_synchronise(augmented: bool) -> None:
    device, size, batch = torch.device("cuda"), 64, 256 if augmented else 32
    settings = replace(AUGMENTS["mixing"], erasing=0.5, color_jitter=(0.4, 0.4, 0.4, 0.1))
    pipeline = imagenet_train(size, augment=settings) if augmented else imagenet_train(size)
    staged = BatchStage(pipeline, torch.bfloat16, device, num_classes=1000)
    numbers, labels = itertools.count(), np.zeros(batch, np.int64)
    feed = DeviceFeed(
        lambda: replace(host_batch(next(numbers), batch=batch, size=size), labels=labels), lambda: 1, staged
    )
    total = torch.zeros((), device=device)
    for _ in range(8):  # pinned memory and the allocator's blocks are there by then
        total += feed.next().images.float().sum()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            made = feed.next()
            total += made.images.float().sum() + made.labels.sum()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(total)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_values_on_the_device_are_those_of_the_host(dtype: torch.dtype) -> None:
    """While the device lags behind, so that memory used again too early would show."""
    size = 64
    feed = DeviceFeed(Numbers(batch=32, size=size), lambda: 1, stage(dtype, "cuda", size), ahead=3)
    matrix = torch.randn(4096, 4096, device="cuda")
    repeats = repeats_for(matrix, 20.0)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for _ in range(40):
        batch = feed.next()
        busy_for(matrix, repeats)
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
        kept.append((batch.images.clone(), batch.labels.clone()))
    for number, (images, labels) in enumerate(kept):
        expected = stage(dtype, size=size)(host_batch(number, batch=32, size=size).images)
        tolerance = {torch.uint8: 0.0, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
        assert (images.cpu().double() - expected.double()).abs().max() <= tolerance
        assert (labels.cpu() == number).all()


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_serves_the_same_on_the_device(tmp_path: Path, workers: int) -> None:
    root = write_folder(tmp_path / "photos", 61)
    settings: dict[str, Any] = {"pipeline": imagenet_train(32), "batch_size": 12, "seed": 7, "workers": workers}
    with create_loader(root, **settings) as host, create_loader(root, device="cuda", **settings) as device:
        for _ in range(2):
            for one, two in itertools.zip_longest(host.batches(), device.batches()):
                assert two.images.device.type == two.labels.device.type == "cuda"
                assert torch.allclose(one.images, two.images.cpu(), atol=1e-5)
                assert torch.equal(one.labels, two.labels.cpu())
                assert (one.index == two.index).all()
