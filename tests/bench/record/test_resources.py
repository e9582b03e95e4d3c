"""The resources of a measurement are those of its processes, without earlier or unrelated use."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from processes import eventually, slowness

from penstock.bench.record import resources
from penstock.bench.record.resources import Resources, ResourceWatch, wait_until_idle

SPIN = "import time\nprint(flush=True)\nend = time.monotonic() + 120\nwhile time.monotonic() < end: pass"
SPIN_SHORTLY = SPIN.replace("+ 120", "+ 0.8")
HOLD = "import time\nx = bytearray(b'1' * 200_000_000)\nprint(flush=True)\ntime.sleep(30)"


def paced(count: int, wait_s: float = 0.02) -> Iterator[int]:
    for number in range(count):
        time.sleep(wait_s)
        yield number


def resources_of_batches(count: int = 40, *, seconds: float = 0.1, without: set[int] | None = None) -> Resources:
    """The resources of `count` batches that cost this process nothing."""
    with ResourceWatch(seconds, without=lambda: without or set()) as watch:
        assert list(watch.watched(paced(count))) == list(range(count))
    found = watch.resources()
    assert found is not None
    return found


@pytest.fixture
def child(request: pytest.FixtureRequest) -> Iterator[psutil.Process]:
    with subprocess.Popen([sys.executable, "-c", request.param], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield psutil.Process(process.pid)
        process.kill()


@pytest.mark.parametrize("child", [SPIN], indirect=True)
def test_processor_time_of_children_counts_unless_they_are_left_out(child: psutil.Process) -> None:
    found = resources_of_batches()
    assert found.cpu_share == pytest.approx(found.cpu_cores / resources.available_cpus())
    assert eventually(
        lambda: resources_of_batches().cpu_cores > resources_of_batches(without={child.pid}).cpu_cores + 0.05
    )


@pytest.mark.parametrize("child", [HOLD], indirect=True)
def test_memory_is_that_of_the_tree(child: psutil.Process) -> None:
    whole, own = resources_of_batches(10).memory_mb, resources_of_batches(10, without={child.pid}).memory_mb
    assert whole is not None
    assert own is not None
    assert 190 < whole - own < 260


def test_droppable_pages_of_files_do_not_count_as_memory(tmp_path: Path) -> None:
    """Its share would change with each program that maps the same files, such as libraries."""
    path = tmp_path / "large"
    path.write_bytes(b"1" * (64 << 20))
    before = resources.tree_memory_mb()
    mapped = np.memmap(path, np.uint8, "r")
    assert mapped.all()
    assert resources.tree_memory_mb() - before < 20


def test_memory_falls_back_to_the_resident_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "Path", lambda *_: Path("/none"))
    found = resources._process_memory(psutil.Process())
    assert found == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)


def test_the_warm_up_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    work = [1.0, 1.0, 1.0, *([0.0] * 20)]  # seconds of processor time before each batch

    def busy() -> Iterator[int]:
        for number, seconds in enumerate(work):
            end = time.thread_time() + seconds / 5
            while time.thread_time() < end:
                pass
            time.sleep(0.02)
            yield number

    with ResourceWatch(1.5) as watch:  # a warm-up of 0.3 s after the first batch
        list(watch.watched(busy()))
    found = watch.resources()
    assert found is not None
    assert found.cpu_cores < 0.5
    assert found.memory_mb is not None


def test_a_measurement_that_ends_in_its_warm_up_has_no_resources() -> None:
    with ResourceWatch(100.0) as watch:
        list(watch.watched(paced(3)))
    assert watch.resources() is None
    assert Resources.of_rounds([]) is None


def test_no_batch_is_kept_while_the_next_one_is_made() -> None:
    alive: list[int] = []

    class Tracked:
        def __init__(self) -> None:
            alive.append(1)

        def __del__(self) -> None:
            alive.pop()

    def made() -> Iterator[Tracked]:
        for _ in range(5):
            assert not alive
            yield Tracked()

    with ResourceWatch(0.01) as watch:
        iterator = iter(watch.watched(made()))
        seen = 0
        while next(iterator, None) is not None:
            seen += 1
    assert seen == 5


def test_storage_reads_exclude_the_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(8_000_000))
    fd = os.open(path, os.O_RDONLY)

    def reads() -> Iterator[int]:
        for number in range(10):
            if number > 3:
                os.fdatasync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.pread(fd, 8_000_000, 0)
            time.sleep(0.01)
            yield number

    before = psutil.Process().io_counters().read_bytes
    with ResourceWatch(0.01) as watch:
        list(watch.watched(reads()))
    came = psutil.Process().io_counters().read_bytes - before
    os.close(fd)
    found = watch.resources()
    assert found is not None
    assert found.storage_mb_s is not None
    assert (found.storage_mb_s > 1) == (came > 8_000_000)  # none on a memory file system


def test_the_share_of_a_gpu_is_read_only_with_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3_000_000, 10_000_000))
    monkeypatch.setattr(torch.cuda, "utilization", lambda _: 75)
    monkeypatch.setattr(resources.importlib.util, "find_spec", lambda name: None)
    assert resources._gpu_sample(device) == (None, 7.0)
    monkeypatch.setattr(resources.importlib.util, "find_spec", lambda name: object())
    assert resources._gpu_sample(device) == (0.75, 7.0)
    monkeypatch.setattr(torch.cuda, "utilization", lambda _: 1 / 0)
    assert resources._gpu_sample(device) == (None, 7.0)


def test_rounds_give_medians_and_the_peak_of_memory() -> None:
    rounds = [Resources(cpu_cores=c, cpu_share=c / 2, memory_mb=m) for c, m in ((1.0, 5.0), (1.5, 9.0), (1.9, None))]
    assert Resources.of_rounds(rounds) == Resources(cpu_cores=1.5, cpu_share=0.75, memory_mb=9.0)


@pytest.mark.parametrize("child", [SPIN_SHORTLY], indirect=True)
def test_working_processes_are_waited_for(child: psutil.Process) -> None:
    """A ceiling measured while workers filled their queue was a quarter of its rate."""
    wait_until_idle()
    ended = child.status() == psutil.STATUS_ZOMBIE
    assert ended or slowness() > 2  # then it got too little processor time to be detected


@pytest.mark.parametrize("child", [SPIN], indirect=True)
def test_waiting_for_busy_processes_has_a_limit(child: psutil.Process) -> None:
    wait_until_idle(0.3)
    assert child.is_running()
