"""Measures a process tree's use of the machine: processors, memory, storage, GPU."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import statistics
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import psutil
import torch

from penstock.bench.record.clock import WARMUP_SHARE, Stopwatch
from penstock.loaders.system.machine import available_cpus

SAMPLE_S = 0.25
_IDLE_S, _IDLE_SHARE = 0.15, 0.1  # a process tree that uses less than this share of a processor in this time is idle
_MAX_SHARE = 0.01  # maximum share of the time for sampling: expensive samples are taken less often

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The process tree's use of the machine during a measurement; None for values that cannot be read here.

    Attributes:
        cpu_cores: mean number of busy processors.
        cpu_share: the same as a share of the available processors, 0 to 1.
        others_share: share of them used by other programs; None if this process may not use the whole machine.
        memory_mb: peak of the samples, MB. Shared pages count once; pages of files do not count, because the kernel can
            drop them. Resident size if this cannot be read.
        storage_mb_s: MB/s from storage, not from the page cache.
        gpu_share: share of the time with a busy GPU, 0 to 1.
        gpu_memory_mb: peak of the samples, MB, of all programs on the GPU.
    """

    cpu_cores: float
    cpu_share: float
    others_share: float | None = None
    memory_mb: float | None = None
    storage_mb_s: float | None = None
    gpu_share: float | None = None
    gpu_memory_mb: float | None = None

    @classmethod
    def of_rounds(cls, rounds: Sequence[Resources]) -> Resources | None:
        """Return the medians of the rounds, for memory the peak; None without a round."""
        if not rounds:
            return None
        values: dict[str, Any] = {}
        for field in fields(cls):
            known = [value for each in rounds if (value := getattr(each, field.name)) is not None]
            over = max if "memory" in field.name else statistics.median
            values[field.name] = over(known) if known else None
        return cls(**values)


class _Usage(NamedTuple):
    """The use of one process since its start: seconds of processor time, bytes from storage (None: unknown)."""

    cpu_s: float
    storage_bytes: int | None


class _Moment(NamedTuple):
    """Usage of each process, by its id and start time, and processor seconds of all programs."""

    processes: dict[tuple[int, float], _Usage]
    machine_s: float


class ResourceWatch:
    """Context that watches the process tree during iteration over `watched(...)`; `resources()` returns the result.

    Watching starts after the warm-up of a measurement of `seconds`, counted from the first batch, so that starting
    workers is not included; `begun` is called then. The processor time of a process that ends meanwhile is lost.
    `without`, called when watching starts, returns the ids of processes to exclude.
    """

    def __init__(
        self,
        seconds: float,
        *,
        device: str = "cpu",
        without: Callable[[], Collection[int]] = frozenset,
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        self._warmup_s, self._without, self._on_begin = WARMUP_SHARE * seconds, without, begun
        self._device = torch.device(device)
        self._since_first: Stopwatch | None = None
        self._begun: tuple[_Moment, Stopwatch] | None = None
        self._left_out: Collection[int] = ()
        self._ended: tuple[_Moment, float] | None = None
        self._memory: list[float] = []
        self._gpu: list[tuple[float | None, float | None]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_often, name="penstock-resources", daemon=True)

    def watched(self, batches: Iterable[Item]) -> Iterable[Item]:
        """Return an iterable over the batches that watches each iteration and keeps no reference to a batch."""
        return _Watched(batches, self._see)

    def _see(self, batch: Item) -> Item:
        if self._begun is None:
            if self._since_first is None:
                self._since_first = Stopwatch()
            elif self._since_first.seconds >= self._warmup_s:
                self._left_out = self._without()
                self._begun = (_usage(self._left_out), Stopwatch())
                self._thread.start()
                self._on_begin()
        return batch

    def resources(self) -> Resources | None:
        """Return the resources used until the context's exit; None if the measurement ended during its warm-up."""
        if self._begun is None or self._ended is None:
            return None
        before, (after, seconds) = self._begun[0], self._ended
        nothing = _Usage(0.0, 0)
        pairs = [(before.processes.get(process, nothing), usage) for process, usage in after.processes.items()]
        cores = sum(new.cpu_s - old.cpu_s for old, new in pairs) / seconds
        read = [
            new.storage_bytes - old.storage_bytes
            for old, new in pairs
            if new.storage_bytes is not None and old.storage_bytes is not None
        ]
        cpus, others = available_cpus(), None
        if cpus == psutil.cpu_count():
            others = min(1.0, max(0.0, (after.machine_s - before.machine_s) / seconds - cores) / cpus)
        busy = [share for share, _ in self._gpu if share is not None]
        return Resources(
            cpu_cores=cores,
            cpu_share=cores / cpus,
            others_share=others,
            memory_mb=max(self._memory, default=None),
            storage_mb_s=sum(read) / 1e6 / seconds if read else None,
            gpu_share=statistics.fmean(busy) if busy else None,
            gpu_memory_mb=max((used for _, used in self._gpu if used is not None), default=None),
        )

    def _sample_often(self) -> None:
        wait_s = 0.0
        while not self._stop.wait(wait_s):
            watch = Stopwatch(thread_time=True)
            self._memory.append(tree_memory_mb(self._left_out))
            if self._device.type == "cuda":
                self._gpu.append(_gpu_sample(self._device))
            wait_s = max(SAMPLE_S, watch.seconds / _MAX_SHARE)

    def __enter__(self) -> ResourceWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._begun is not None:
            seconds = self._begun[1].seconds
            self._ended = (_usage(self._left_out), max(seconds, 1e-9))
            self._stop.set()
            self._thread.join()  # it has been woken, and reads /proc for milliseconds
            self._memory.append(tree_memory_mb(self._left_out))  # by now every page in use has been touched


class _Watched:
    """An iterable that passes each batch to `see`."""

    def __init__(self, batches: Iterable[Item], see: Callable[[Item], Item]) -> None:
        self._batches, self._see = batches, see

    def __iter__(self) -> Iterator[Any]:
        return map(self._see, self._batches)  # unlike a generator, it does not keep a batch while the next one is made


def _processes(without: Collection[int]) -> Iterator[psutil.Process]:
    here = psutil.Process()
    yield here
    for process in here.children(recursive=True):
        if process.pid not in without:
            yield process


def _usage(without: Collection[int]) -> _Moment:
    tree: dict[tuple[int, float], _Usage] = {}
    for process in _processes(without):
        try:
            times = process.cpu_times()
            tree[process.pid, process.create_time()] = _Usage(times.user + times.system, storage_bytes(process))
        except psutil.Error:
            continue
    machine = psutil.cpu_times()
    return _Moment(tree, sum(machine) - machine.idle - getattr(machine, "iowait", 0.0) - getattr(machine, "guest", 0.0))


def storage_bytes(process: psutil.Process | None = None) -> int | None:
    """Return the bytes that a process (default: this one) has read from storage; None if unknown."""
    try:
        return int((process or psutil.Process()).io_counters().read_bytes)
    except (psutil.Error, OSError, AttributeError, NotImplementedError):
        return None


def wait_until_idle(limit_s: float = 5.0) -> None:
    """Wait until this process and its descendants are idle, for at most `limit_s` seconds.

    After the last request for a batch, a loader's workers continue until enough batches are ready. On two slow cores
    that took two seconds, in which a ceiling was measured at a quarter of its rate.
    """
    watch, pause, used = Stopwatch(), threading.Event(), _tree_cpu_s()
    while watch.seconds < limit_s:
        pause.wait(_IDLE_S)
        before, used = used, _tree_cpu_s()
        if used - before <= _IDLE_SHARE * _IDLE_S:
            return


def _tree_cpu_s() -> float:
    return sum(usage.cpu_s for usage in _usage(()).processes.values())


def tree_memory_mb(without: Collection[int] = ()) -> float:
    """Return the memory in MB of this process and its descendants, except `without`; shared pages count once."""
    return sum(map(_process_memory, _processes(without))) / 1e6


def release_unused_memory() -> None:
    """Return freed memory to the system; otherwise the next measured loader would reuse it and seem to need none."""
    gc.collect()
    dali = sys.modules.get("nvidia.dali.backend")
    if dali is not None:
        dali.ReleaseUnusedMemory()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc
    if trim is not None:
        trim(0)


def _process_memory(process: psutil.Process) -> int:
    """Return a process's bytes that do not belong to files, with its share of shared ones; else its resident size.

    Pages of files, such as libraries, are shared with changing other programs. 0 if the process has ended.
    """
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        found = [int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
        if found:
            return sum(found) * 1024
    except (OSError, ValueError):
        pass
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _gpu_sample(device: torch.device) -> tuple[float | None, float | None]:
    """Return (busy share of the time, MB in use) of the device; the share only if pynvml is installed."""
    share = None
    if importlib.util.find_spec("pynvml") is not None:
        try:
            share = torch.cuda.utilization(device) / 100
        except Exception:  # NVML has its own error types; some containers forbid it
            share = None
    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:
        return share, None
    return share, (total - free) / 1e6
