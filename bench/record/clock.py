"""Reads clocks and computes rates; no other file of the benchmark reads the time."""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import psutil
import torch

Batch = TypeVar("Batch")
NUM_WINDOWS, MIN_WINDOWS = 10, 3
WARMUP_SHARE = 0.2


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Images per second over consecutive windows of steps, after warm-up.

    Attributes:
        median, q25, q75: median and quartiles over the windows, images/s.
        images, seconds: totals over the windows, so that images / seconds is the mean rate.
        over_time: (seconds, images/s) of each window, in order.
    """

    median: float
    q25: float
    q75: float
    windows: int
    images: int
    seconds: float
    over_time: tuple[tuple[float, float], ...] = ()

    @classmethod
    def from_steps(cls, images: Sequence[float], seconds: Sequence[float], windows: int = NUM_WINDOWS) -> Rate:
        """Return the rate of steps with these images and seconds, in at most `windows` consecutive windows.

        A window has several steps because loaders deliver in bursts: the median over single steps would be the rate
        within a burst.
        """
        groups = min(windows, len(images))
        edges = np.linspace(0, len(images), groups + 1).round().astype(int)[:-1]
        window_images = np.add.reduceat(np.asarray(images, dtype=np.float64), edges)
        window_seconds = np.add.reduceat(np.asarray(seconds, dtype=np.float64), edges)
        rates = window_images / np.maximum(window_seconds, 1e-9)
        q25, median, q75 = np.percentile(rates, [25, 50, 75])
        return cls(
            median=float(median),
            q25=float(q25),
            q75=float(q75),
            windows=groups,
            images=int(window_images.sum()),
            seconds=float(window_seconds.sum()),
            over_time=tuple(zip(window_seconds.tolist(), rates.tolist(), strict=True)),
        )

    def rounded(self) -> tuple[tuple[float, float], ...]:
        """Return over_time for a record, rounded to 0.1 ms and 0.01 images/s."""
        return tuple((round(seconds, 4), round(rate, 2)) for seconds, rate in self.over_time)


class Mark(NamedTuple):
    """Hold one moment: in seconds on the host's clock, and on the device's timeline if that is separate."""

    host: float
    event: torch.cuda.Event | None


class Clock:
    """Marks moments on the timeline of a device: CUDA events in its current stream, else the host's monotonic clock.

    An event is stamped when the device reaches it, so that the seconds between two marks are device time and
    marking never waits.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._events = self.device.type == "cuda"

    def mark(self) -> Mark:
        """Return this moment; does not wait for the device."""
        if not self._events:
            return Mark(time.perf_counter(), None)
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return Mark(time.perf_counter(), event)

    def passed(self, mark: Mark) -> bool:
        """Return whether the device has reached the mark; does not wait."""
        return mark.event is None or bool(mark.event.query())  # type: ignore[no-untyped-call]

    def seconds(self, begin: Mark, end: Mark) -> float:
        """Return the seconds between two marks on the device's timeline; waits until the device reaches the second."""
        if begin.event is None or end.event is None:
            return end.host - begin.host
        end.event.synchronize()
        return float(begin.event.elapsed_time(end.event)) / 1e3

    def synchronize(self) -> None:
        """Wait until the device has done all work queued so far."""
        if self._events:
            torch.cuda.synchronize(self.device)


def process_age() -> float:
    """Return the seconds since this process started."""
    return max(0.0, time.time() - float(psutil.Process().create_time()))


class Stopwatch:
    """Measures seconds since its creation, on the host's clock or of the calling thread's processor time."""

    def __init__(self, *, thread_time: bool = False) -> None:
        self._now = time.thread_time if thread_time else time.perf_counter
        self._start = self._now()

    @property
    def seconds(self) -> float:
        return self._now() - self._start


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Hold how the measured steps spent their time.

    Attributes:
        images_per_s: rate of the steps; None if none was measured.
        wait_share: share of the device's time between the end of one step's work and the arrival of the next batch, 0
            to 1. On CUDA this is idle time of the device: a wait hidden behind queued work does not count.
    """

    images_per_s: Rate | None
    wait_share: float
    steps: int


class StepTimer:
    """Times the steps of a training loop from inside its iteration: `for batch in timer.watch(batches, len): ...`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Forget all steps so far, including the current one, as warm-up."""
        self._unread: deque[tuple[int, Mark, Mark, Mark]] = deque()
        self._images = array("q")
        self._seconds, self._waits = array("d"), array("d")
        self._counting = False

    def watch(self, batches: Iterable[Batch], num_images: Callable[[Batch], int]) -> Iterator[Batch]:
        """Yield the batches. A step lasts from asking for its batch to asking for the next one."""
        source = iter(batches)
        begin = self._clock.mark()
        self._counting = True
        for batch in source:
            arrived = self._clock.mark()
            images = num_images(batch)
            yield batch
            del batch  # the loader may need this memory for the next batch
            end = self._clock.mark()
            if self._counting:
                self._record(images, begin, arrived, end)
            self._counting, begin = True, end

    def _record(self, images: int, begin: Mark, arrived: Mark, end: Mark) -> None:
        self._unread.append((images, begin, arrived, end))
        while self._unread and self._clock.passed(self._unread[0][-1]):
            self._read()

    def _read(self) -> None:
        images, begin, arrived, end = self._unread.popleft()
        self._images.append(images)
        self._seconds.append(self._clock.seconds(begin, end))
        self._waits.append(self._clock.seconds(begin, arrived))

    def times(self) -> StepTimes:
        """Return the times since the start or the last restart; waits for the device to finish the steps."""
        while self._unread:
            self._read()
        total = max(sum(self._seconds), 1e-9)
        return StepTimes(
            images_per_s=Rate.from_steps(self._images, self._seconds) if self._images else None,
            wait_share=sum(self._waits) / total,
            steps=len(self._images),
        )


def measure_rate(
    step: Callable[[], int],
    *,
    seconds: float,
    device: torch.device | str = "cpu",
    clock: Clock | None = None,
    patience: float = math.inf,
) -> Rate:
    """Repeat `step`, which returns its number of images, for about `seconds`; return its rate.

    The first fifth, and at least two steps, is warm-up; at least three windows are measured, however slow a step is.
    After `patience` times `seconds`, one warm-up step and one measured step are enough.
    """
    clock = clock or Clock(device)
    first = clock.mark().host

    def impatient() -> bool:
        return clock.mark().host - first >= patience * seconds

    step()  # allocates, compiles, starts workers: not representative
    clock.synchronize()
    begin = clock.mark().host
    while not impatient():
        step()
        if clock.mark().host - begin >= WARMUP_SHARE * seconds:
            break
    clock.synchronize()

    window_s = (1 - WARMUP_SHARE) * seconds / NUM_WINDOWS
    marks = [clock.mark()]
    images: list[int] = []
    times: list[float] = []
    while (
        marks[-1].host - marks[0].host < window_s * (NUM_WINDOWS - 0.5)
        or not images
        or (len(images) < MIN_WINDOWS and not impatient())
    ):
        window_end = marks[-1].host + window_s
        images.append(step())
        while clock.mark().host < window_end:
            images[-1] += step()
        marks.append(clock.mark())
        # Read one window late: the device keeps its queue, and the host cannot run ahead by more than a window.
        if len(marks) > 2:
            times.append(clock.seconds(marks[-3], marks[-2]))
    times.append(clock.seconds(marks[-2], marks[-1]))
    return Rate.from_steps(images, times, len(images))
