"""DeviceFeed: batches in order, sent ahead only when finished, never into memory that the device still reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from logged_copies import LoggedCopies
from photo_folder import write_folder
from strict_copies import META, StrictCopies

from penstock.loaders import create_loader
from penstock.loaders.make.engine_contract import HostBatch
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.run.feed.batch_feed import DeviceBatch, DeviceFeed
from penstock.loaders.run.feed.copies import CopyEngine
from penstock.loaders.run.feed.tensor_feed import MOST_STEPS
from penstock.pipelines import imagenet_train
from penstock.pipelines.augmentations import Augmentations
from penstock.pipelines.batch.stage import BatchStage
from penstock.pipelines.plan.augmentations import BatchKey
from penstock.pipelines.plan.crops import BatchPlan

SIZE = 8
BATCH = 4


def host_batch(number: int, *, batch: int = BATCH, size: int = SIZE) -> HostBatch:
    """A batch with `number` as every pixel and label."""
    index = np.arange(batch, dtype=np.int64) + number * batch
    return HostBatch(
        cursor=Cursor(0, number * batch),
        images=torch.full((batch, size, size, 3), number % 256, dtype=torch.uint8),
        index=index,
        labels=np.full(batch, number, np.int64),
        plan=BatchPlan(*(np.zeros(batch, np.int32) for _ in BatchPlan._fields)),
        bad=(),
        produce_s=0.0,
    )


class Numbers:
    """A source of batches 0, 1, 2, ... that raises `errors[k]` instead of batch k."""

    def __init__(self, errors: dict[int, BaseException] | None = None, **shape: int) -> None:
        self.taken, self._errors, self._shape = 0, errors or {}, shape

    def __call__(self) -> HostBatch:
        number, self.taken = self.taken, self.taken + 1
        if number in self._errors:
            raise self._errors[number]
        return host_batch(number, **self._shape)


def stage(dtype: torch.dtype = torch.float32, device: str = "cpu", size: int = SIZE) -> BatchStage:
    return BatchStage(imagenet_train(size), dtype, torch.device(device))


def feed_of(source: Callable[[], HostBatch], ready: Callable[[], int], ahead: int = 2) -> DeviceFeed:
    return DeviceFeed(source, ready, stage(), ahead=ahead, copies=LoggedCopies())


def check(batch: DeviceBatch, number: int) -> None:
    """Check that this is batch `number`, normalised."""
    assert batch.labels.tolist() == [number] * BATCH
    assert batch.host.cursor == Cursor(0, number * BATCH)
    assert batch.host.index.tolist() == host_batch(number).index.tolist()
    assert torch.equal(batch.images, stage()(host_batch(number).images))


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
def test_order_and_values_equal_the_sources_whatever_is_ready(ahead: int) -> None:
    draw = np.random.default_rng(ahead)
    feed = feed_of(Numbers(), lambda: int(draw.integers(0, 3)), ahead)
    for number in range(60):
        check(feed.next(), number)


@pytest.mark.parametrize(("ahead", "ready"), [(0, 1), (1, 1), (3, 1), (2, 0)])
def test_only_finished_batches_are_sent_ahead(ahead: int, ready: int) -> None:
    source = Numbers()
    feed = feed_of(source, lambda: ready, ahead)
    for number in range(20):
        check(feed.next(), number)
        assert source.taken - (number + 1) == ahead * ready


def test_an_error_is_raised_in_its_place_after_the_batches_before_it() -> None:
    error = ValueError("broken")
    source = Numbers({3: error})
    feed = feed_of(source, lambda: 1, ahead=4)
    for number in range(3):
        check(feed.next(), number)
        assert source.taken == 4  # nothing is sent ahead past an error
    with pytest.raises(ValueError, match="broken") as caught:
        feed.next()
    assert caught.value is error
    check(feed.next(), 4)  # the source decides what follows an error


def test_an_interrupt_is_not_stored() -> None:
    feed = feed_of(Numbers({2: KeyboardInterrupt()}), lambda: 1, ahead=2)
    with pytest.raises(KeyboardInterrupt):
        feed.next()


def test_flush_drops_batches_in_flight() -> None:
    source = Numbers()
    feed = feed_of(source, lambda: 1, ahead=2)
    check(feed.next(), 0)
    feed.flush()
    source.taken = 50
    check(feed.next(), 50)


@pytest.mark.parametrize("copies", [None, LoggedCopies()], ids=["CPU", "device"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
def test_batches_are_not_inference_tensors(dtype: torch.dtype, copies: LoggedCopies | None) -> None:
    feed = DeviceFeed(Numbers(), lambda: 1, stage(dtype), ahead=2, copies=copies)
    with torch.inference_mode():
        batches = [feed.next()]
    batches += [feed.next() for _ in range(6)]  # some were sent in inference mode, some use its pinned memory
    assert not any(tensor.is_inference() for batch in batches for tensor in (batch.images, batch.labels))


def test_host_pixels_are_released_once_they_are_copied() -> None:
    feed = feed_of(Numbers(), lambda: 0)
    assert feed.next().host.images.shape == (0, SIZE, SIZE, 3)


def test_on_a_cpu_batches_are_passed_through() -> None:
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


def test_on_a_cpu_the_memory_of_results_is_reused() -> None:
    feed = DeviceFeed(Numbers(), lambda: 0, stage())
    addresses = {feed.next().images.data_ptr() for _ in range(20)}
    assert len(addresses) <= 3


class IdleDevice(LoggedCopies):
    """A device that runs a step only when the host waits for it, like one with long steps."""

    queued = done = 0

    def mark_consumer(self) -> str:
        return f"step {self.queued}"

    def wait_on_host(self, event: Any) -> None:
        if isinstance(event, str):
            self.done = max(self.done, int(event.removeprefix("step ")))


def test_the_host_is_at_most_a_few_steps_ahead_of_the_device() -> None:
    """A step that is captured in a graph is one launch, so nothing else limits the host."""
    copies = IdleDevice()
    feed = DeviceFeed(Numbers(), lambda: 1, stage(), copies=copies)
    ahead = []
    for _ in range(50):
        feed.next()
        copies.queued += 1
        ahead.append(copies.queued - copies.done)
    assert max(ahead) == MOST_STEPS + 1  # including the step that was just queued
    assert ahead[:MOST_STEPS] == [1, 2, 3, 4]  # the device always has work


# ---- a device without values ----


@pytest.mark.parametrize("kind", ["plain", "pinned", "resident"])
@pytest.mark.parametrize(
    ("augmented", "dtype"), [(False, torch.uint8), (True, torch.uint8), (False, torch.bfloat16)], ids=str
)
def test_pixels_reach_the_device_through_pinned_memory_and_stay_there(
    augmented: bool, dtype: torch.dtype, kind: str
) -> None:
    augment = AUGMENTS["operations"] if augmented else Augmentations()
    copies, numbers = StrictCopies(), Numbers()
    staged = BatchStage(imagenet_train(SIZE, augment=augment), dtype, META)
    source = lambda: planned(numbers(), staged)  # noqa: E731
    made = {
        "plain": source,
        "pinned": lambda: replace(batch := source(), images=copies.lock(batch.images), pinned=True),
        "resident": lambda: replace(batch := source(), images=batch.images.to(META), resident=True),
    }
    if kind != "plain":  # the host has no copy of its pixels
        pinned = copies.pinned
        copies.pinned = lambda like: pinned(like) if like.ndim == 1 else pytest.fail("copied")  # type: ignore[method-assign]
    feed = DeviceFeed(made[kind], lambda: 1, staged, ahead=2, copies=copies)
    with torch.inference_mode():
        feed.next()
    for _ in range(5):
        batch = feed.next()
        assert (batch.images.shape, batch.images.dtype) == ((BATCH, 3, SIZE, SIZE), dtype)
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
    feed.close()
    assert copies.uploaded == (0 if kind == "resident" else 8 * BATCH * SIZE * SIZE * 3)
    assert copies.handed_over == sorted(copies.handed_over)
    assert len(copies.waited) == 8  # each slot's last use


# ---- augmentations ----

AUGMENTS = {
    "operations": Augmentations(auto_augment="rand", color_jitter=(0.4, 0.4, 0.4, 0.1), erasing=0.5),
    "mixing": Augmentations(auto_augment="trivial", mixup=0.4, cutmix=1.0),
}


def textured(number: int) -> HostBatch:
    """Batch `number` with unique pixels, in epoch 3 and with padding in the last row, or also in the first two."""
    pixels = np.random.default_rng(number).integers(0, 256, (BATCH, SIZE, SIZE, 3), np.uint8)
    index = np.append(np.arange(BATCH - 1, dtype=np.int64) + number * BATCH, -1)
    labels = np.append(np.arange(BATCH - 1, dtype=np.int64), -1)
    index[: 2 * (number % 2)] = labels[: 2 * (number % 2)] = -1
    return replace(host_batch(number), cursor=Cursor(3, 0), images=torch.from_numpy(pixels), index=index, labels=labels)


def planned(batch: HostBatch, staged: BatchStage, **changes: Any) -> HostBatch:
    """Return the batch with the augmentations that a worker draws for its samples."""
    plan = staged.plan(BatchKey(9, batch.cursor.epoch, batch.index))
    return replace(batch, augments=(plan,), **changes)


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize("name", AUGMENTS)
@pytest.mark.parametrize("pad", [True, False])
def test_both_ways_of_a_batch_apply_the_plan_of_its_samples(
    name: str, dtype: torch.dtype, resident: bool, pad: bool
) -> None:
    """On both paths, with and without padding."""
    augment = AUGMENTS[name] if dtype != torch.uint8 else replace(AUGMENTS[name], mixup=0.0, cutmix=0.0)
    pipeline = imagenet_train(SIZE, augment=augment)
    staged = BatchStage(pipeline, dtype, torch.device("cpu"), num_classes=5)
    seen = []
    for copies in (None, LoggedCopies()):
        numbers = itertools.count()
        source = lambda numbers=numbers: planned(textured(next(numbers)), staged, resident=resident)  # noqa: E731
        feed = DeviceFeed(source, lambda: 1, staged, pad=pad, ahead=1, copies=copies)
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


def test_the_users_function_runs_on_the_consumers_stream_when_a_batch_is_handed_out() -> None:
    """It does not run ahead, because it may read what earlier steps change."""
    copies = LoggedCopies()

    def own(images: torch.Tensor, labels: torch.Tensor) -> Any:
        copies.log.append(("own", int(labels[0])))
        assert not copies.is_inside
        return images + 1, labels + 100

    feed = DeviceFeed(Numbers(), lambda: 1, stage(), ahead=2, batch_transform=own, copies=copies)
    for number in range(5):
        batch = feed.next()
        assert torch.equal(batch.images, stage()(host_batch(number).images) + 1)
        assert batch.labels.tolist() == [100 + number] * BATCH
        handed_over, called = copies.log[-2:]
        assert called == ("own", number)
        assert handed_over[0] == f"hand over after mark {2 * number + 2}"
    assert sum(entry[0] == "own" for entry in copies.log) == 5


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("pad", [True, False])
def test_the_users_function_gets_the_rows_that_are_served(pad: bool, on_device: bool) -> None:
    indices = [np.array([-1, 4, -1, 6]), np.full(BATCH, -1), np.array([7, 8, 9, 10])]
    source = iter([replace(host_batch(number), index=index) for number, index in enumerate(indices)])
    seen: list[tuple[int, int]] = []

    def own(images: torch.Tensor, labels: torch.Tensor) -> Any:
        seen.append((len(images), len(labels)))
        return images, labels

    copies = LoggedCopies() if on_device else None
    feed = DeviceFeed(lambda: next(source), lambda: 0, stage(), pad=pad, batch_transform=own, copies=copies)
    assert [len(feed.next().images) for _ in indices] == ([4, 4, 4] if pad else [2, 0, 4])
    assert seen == ([(4, 4)] * 3 if pad else [(2, 2), (4, 4)])


# ---- on a GPU ----


class TimedCopies(CopyEngine):
    """CopyEngine that records when the work of each batch started and ended on the side stream."""

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
    """Return how many times `matrix` can be multiplied by itself in that time."""
    busy_for(matrix, 3)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    busy_for(matrix, 10)
    end.record()
    end.synchronize()
    return max(1, round(wanted_ms / (start.elapsed_time(end) / 10)))


@pytest.mark.gpu
def test_transfers_overlap_compute() -> None:
    """The copies of later batches run while the device computes on the current one."""
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
def test_a_step_does_not_synchronise_the_device(augmented: bool) -> None:
    device, size, batch = torch.device("cuda"), 64, 256 if augmented else 32
    settings = replace(AUGMENTS["mixing"], erasing=0.5, color_jitter=(0.4, 0.4, 0.4, 0.1))
    pipeline = imagenet_train(size, augment=settings) if augmented else imagenet_train(size)
    staged = BatchStage(pipeline, torch.bfloat16, device, num_classes=1000)
    numbers, labels = itertools.count(), np.zeros(batch, np.int64)
    made = lambda: planned(host_batch(next(numbers), batch=batch, size=size), staged, labels=labels)  # noqa: E731
    feed = DeviceFeed(made, lambda: 1, staged)
    total = torch.zeros((), device=device)
    for _ in range(8):  # then pinned memory and the allocator's blocks exist
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
def test_values_on_the_device_equal_those_on_the_host(dtype: torch.dtype) -> None:
    """While the device lags behind, so that memory reused too early would show."""
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
def test_the_host_waits_for_a_device_that_is_behind() -> None:
    """With steps of one launch, like a captured step, and more of them than may be queued."""
    feed = DeviceFeed(Numbers(), lambda: 1, stage(device="cuda"))
    ends: list[torch.cuda.Event] = []
    for _ in range(4 * MOST_STEPS):
        feed.next()
        assert sum(not end.query() for end in ends) <= MOST_STEPS
        torch.cuda._sleep(20_000_000)  # about 10 ms
        ends.append(torch.cuda.Event())
        ends[-1].record()


WORKERS: dict[str, dict[str, Any]] = {
    "none": {"workers": 0},
    "threads": {"workers": 2, "workers_are": "threads"},
    "processes": {"workers": 2, "workers_are": "processes"},
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("kind", "dtype", "augment"),
    [
        ("none", torch.float32, Augmentations()),
        ("threads", torch.uint8, AUGMENTS["operations"]),
        ("processes", torch.bfloat16, replace(AUGMENTS["mixing"], color_jitter=(0.4, 0.4, 0.4, 0.1), erasing=0.5)),
    ],
    ids=["plain", "augmented, uint8", "mixed, bfloat16"],
)
def test_a_loader_serves_the_same_on_the_device(
    tmp_path: Path, kind: str, dtype: torch.dtype, augment: Augmentations, device: str
) -> None:
    root = write_folder(tmp_path / "photos", 61)
    pipeline = imagenet_train(32, augment=augment)
    settings: dict[str, Any] = {"pipeline": pipeline, "batch_size": 12, "seed": 7, "dtype": dtype}
    tolerance = {torch.uint8: 0.0, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]  # for torch's kernels
    with (
        create_loader(root, workers=0, **settings) as host,
        create_loader(root, device=device, **WORKERS[kind], **settings) as there,
    ):
        for _ in range(2):
            for one, two in itertools.zip_longest(host.batches(), there.batches()):
                assert two.images.device.type == two.labels.device.type == device
                assert (one.images.float() - two.images.cpu().float()).abs().max() <= tolerance
                assert torch.allclose(one.labels.float(), two.labels.cpu().float(), atol=1e-6)
                assert (one.index == two.index).all()
