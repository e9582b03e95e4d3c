"""Scarce resources: a loader works with what is available or reports with a code what is missing, and never grows."""

from __future__ import annotations

import itertools
import os
import resource
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from command_line import lines_of
from forked_commands import Command, Commands
from mounts import needs_mounts
from processes import child_pids, eventually, worker_pids

from penstock.loaders import LoaderError, create_loader
from penstock.loaders.front.loader import Loader
from penstock.loaders.system import machine
from penstock.pipelines import imagenet_train


def open_loader(source: Any, **settings: Any) -> Loader:
    defaults = {"pipeline": imagenet_train(32), "batch_size": 12, "dtype": torch.uint8, "seed": 7, "workers": 2}
    return create_loader(source, **{**defaults, "workers_are": "processes", **settings})


def iterate(commands: Commands, tmp_path: Path, limit: str, *arguments: object) -> tuple[int, Command]:
    """Run `penstock iterate` with batches of 12 under a limit, a line of Python; return (exit code, the command).

    Python decodes, so workers are processes.
    """
    script = tmp_path / "limited.py"
    lines = ("import ctypes, psutil, resource, subprocess", "from penstock.bench import cli", limit, "cli.main()")
    script.write_text("if __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in lines))
    return commands.run("iterate", *arguments, "--batch-size", 12, "--decoder", "simplejpeg", script=script)


# ---- memory for workers ----


@needs_mounts
def test_a_small_dev_shm_is_enough(photos: Path, commands: Commands, tmp_path: Path) -> None:
    """Docker's is 64 MB, and torch's workers fail there; this one is 8 MB, for 58 MB of slots."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", "/dev/shm"]
    own_mounts = "assert ctypes.CDLL(None).unshare(0x20000) == 0"  # CLONE_NEWNS
    limit = f"{own_mounts}; subprocess.run({mount}, check=True)"
    code, done = iterate(commands, tmp_path, limit, photos, "--size", 448, "--workers", 2)
    assert (code, done.errors) == (0, "epoch 0: planned=48 delivered=48 replaced=0\n")
    assert len(lines_of(done.output)) == 4


@pytest.mark.parametrize(("workers", "code"), [(0, "E-MEM"), (2, "E-SHM")])
def test_slots_beyond_the_free_memory_are_refused(
    photos: Path, monkeypatch: pytest.MonkeyPatch, workers: int, code: str
) -> None:
    monkeypatch.setattr(machine, "memory_headroom", lambda: 100_000)
    with open_loader(photos, workers=workers) as loader, pytest.raises(LoaderError) as caught:
        next(iter(loader))
    assert (caught.value.code, caught.value.exit_code) == (code, 7)
    assert "have=100,000" in caught.value.cause
    assert not child_pids()


@pytest.mark.parametrize(
    ("workers", "size", "extra_mb"),
    [
        (0, 2000, 128),
        (2, 2000, 128),  # too little for the slots
        (2, 64, 20),  # enough for the slots, but not for the threads that talk to workers
    ],
)
def test_a_limit_of_address_space_is_reported_without_a_hang(
    photos: Path, commands: Commands, tmp_path: Path, workers: int, size: int, extra_mb: int
) -> None:
    """As set by `ulimit -v` and some batch systems, above the needs of the imports."""
    limit = f"resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + ({extra_mb} << 20),) * 2)"
    code, done = iterate(commands, tmp_path, limit, photos, "--size", size, "--workers", workers, "--dump", os.devnull)
    assert code in ((7,) if size == 2000 else (0, 5, 7)), done.errors
    if code:
        codes = ("LoaderError[E-MEM]", "LoaderError[E-SHM]", "LoaderError[E-WORKER]")
        assert done.errors.splitlines()[-1].startswith(codes)


# ---- descriptors ----


@pytest.mark.parametrize(("workers", "code"), [(2, 0), (8, 7)])
def test_few_descriptors_are_enough_or_reported(
    photos: Path, commands: Commands, tmp_path: Path, workers: int, code: int
) -> None:
    limit = "resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))"
    left, done = iterate(commands, tmp_path, limit, photos, "--size", 32, "--workers", workers)
    assert left == code, done.errors
    if code:
        assert done.errors.startswith("LoaderError[E-FD]")
        assert done.errors.count("\n") == 1
    else:
        assert len(lines_of(done.output)) == 4


def test_the_soft_limit_of_descriptors_is_raised_automatically(photos: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + 8, hard))
    try:
        with open_loader(photos) as loader:
            assert len(list(loader)) == 4
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_advised_limit_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (20, 20))
    for needed in (4096, 5000, 100_000):
        with pytest.raises(LoaderError) as caught:
            machine.ensure_descriptors(needed)
        advised = int(caught.value.fix.partition("ulimit -n ")[2].partition(",")[0])
        assert needed < advised <= 2 * (needed + 1000)


# ---- processors ----


def test_one_processor_means_one_worker(photos: Path) -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert machine.available_cpus() == machine.default_workers() == 1
        with open_loader(photos, workers=None) as loader:
            assert loader.describe()["workers"] == 1
            next(iter(loader))
            assert len(worker_pids()) == 1
    finally:
        os.sched_setaffinity(0, allowed)


# ---- growth ----


def anonymous_bytes(pids: set[int]) -> int:
    """Return memory of these processes without files: library pages become private when other programs end."""
    texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return sum(int(text.partition("RssAnon:")[2].split()[0]) << 10 for text in texts)


def test_workers_do_not_grow_with_iterations(photos: Path) -> None:
    with open_loader(photos, workers=2) as loader:
        sizes = []
        for epoch in range(150):
            assert len(list(loader)) == 4
            if epoch in (29, 149):
                workers = worker_pids()
                assert len(workers) == 2
                sizes.append(anonymous_bytes(workers))
    assert sizes[1] < 1.1 * sizes[0], sizes


@pytest.mark.parametrize("workers", [0, 2])
def test_the_consumer_does_not_grow_with_epochs_that_are_left_early(photos: Path, workers: int) -> None:
    me = psutil.Process()
    with open_loader(photos, workers=workers) as loader:
        sizes = []
        for round_ in range(200):
            assert len(list(itertools.islice(loader, 3))) == 3
            if round_ in (49, 199):
                sizes.append((anonymous_bytes({me.pid}), me.num_fds(), me.num_threads(), len(child_pids())))
    assert sizes[1][0] < 1.05 * sizes[0][0], sizes
    assert all(after <= before for before, after in zip(sizes[0][1:], sizes[1][1:], strict=True)), sizes
    assert eventually(lambda: not child_pids())
