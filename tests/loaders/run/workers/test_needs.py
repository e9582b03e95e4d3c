"""What a loader needs before it starts workers: every lack is one line with its fix, before any process starts."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from memory_source import MemorySource
from processes import child_pids
from torch.utils.data import TensorDataset

from penstock.loaders import DataLoader, LoaderError, create_loader
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.dali.dali_engine import DALI_BYTES, DALI_IMAGES
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.front.advance_checks import loader_needs
from penstock.loaders.front.backends import BACKENDS
from penstock.loaders.front.profile import Profile, load_profile, profile_path, save_profile
from penstock.loaders.run.workers import needs as preflight
from penstock.loaders.run.workers.needs import SERVER_BYTES, WORKER_BYTES, Needs
from penstock.loaders.system import machine
from penstock.pipelines import imagenet_train


def no_folder() -> str:
    raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")


# resource that is lacking -> (where it is looked up, what is found in a folder, code, fix)
LACKS: dict[str, tuple[Any, str, Callable[[Path], Any], str, str]] = {
    "files": (machine.resource, "getrlimit", lambda _: lambda _: (20, 20), "E-FD", "ulimit -n 4096"),
    "semaphores": (preflight, "DEV_SHM", lambda folder: str(folder / "absent"), "E-SHM", "mount -t tmpfs"),
    "processes": (preflight, "process_headroom", lambda _: lambda: 5, "E-MEM", "--pids-limit"),
    "short temporary folder": (
        tempfile,
        "tempdir",
        lambda folder: str(folder / ("x" * 90)),
        "E-NOSPC",
        "export TMPDIR=",
    ),
    "temporary folder": (tempfile, "gettempdir", lambda _: no_folder, "E-NOSPC", "export TMPDIR="),
    "memory": (machine, "memory_headroom", lambda _: lambda: 50 << 20, "E-MEM", "docker --memory"),
}


@pytest.mark.parametrize("lack", LACKS)
def test_a_lack_is_reported_before_workers_start(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lack: str
) -> None:
    owner, name, found, code, cure = LACKS[lack]
    monkeypatch.setattr(owner, name, found(tmp_path))
    pipeline = imagenet_train(16)
    with (
        create_loader(photos, pipeline=pipeline, batch_size=4, workers=2, workers_are="processes") as loader,
        pytest.raises(LoaderError) as ours,
    ):
        next(iter(loader))
    numbers = TensorDataset(torch.arange(8))
    with (
        DataLoader(numbers, num_workers=2, multiprocessing_context="forkserver") as drop_in,
        pytest.raises(LoaderError) as theirs,
    ):
        next(iter(drop_in))
    for caught in (ours.value, theirs.value):
        assert (caught.code, caught.exit_code) == (code, 7)
        assert cure in caught.fix
    assert (ours.value.backend, ours.value.rank) == ("torch", 0)
    assert not child_pids()


def test_a_worker_in_the_consumer_needs_neither_semaphores_nor_sockets(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name, found, *_ in (LACKS[lack] for lack in ("semaphores", "processes", "short temporary folder")):
        monkeypatch.setattr(owner, name, found(tmp_path))
    with create_loader(photos, pipeline=imagenet_train(16), batch_size=4, workers=0) as loader:
        assert len(list(loader)) == 12


def test_dev_shm_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(preflight, "DEV_SHM", str(tmp_path))
    free = preflight.ensure_dev_shm(0, "nothing")
    status = os.statvfs(tmp_path)
    assert free == pytest.approx(status.f_bavail * status.f_frsize, rel=0.05)
    with pytest.raises(LoaderError, match="need=") as caught:
        preflight.ensure_dev_shm(1 << 60, "batches")
    assert caught.value.code == "E-SHM"
    assert "--shm-size" in caught.value.fix


def test_needs_count_slots_outputs_and_processes() -> None:
    batch = 8 * 32 * 32 * 3
    settings: dict[str, Any] = {"batch_size": 8, "size": (32, 32)}
    files = loader_needs("torch", workers=2, prefetch=3, dtype=torch.uint8, **settings)
    rows = files.slot_bytes - 9 * batch
    assert 0 < rows < 9 * 8 * 96
    assert (files.own_bytes, files.processes, files.descriptors) == (0, 2, 48)
    assert loader_needs("torch", workers=2, prefetch=3, **settings).own_bytes == 2 * 4 * batch
    pinned = loader_needs("torch", workers=2, prefetch=3, device="cuda", **settings)
    assert (pinned.own_bytes, pinned.slot_bytes) == (0, files.slot_bytes)  # the GPU reads the slots
    assert loader_needs("torch", workers=0, **settings).processes == 0
    assert loader_needs("hdf5", workers=2, **settings) == loader_needs("torch", workers=2, **settings)
    assert loader_needs("hdf5", workers=2, workers_are="threads", **settings).processes == 0
    dali = loader_needs("dali", workers=4, readers=2, prefetch=2, dtype=torch.uint8, **settings)
    assert dali.slot_bytes - 8 * batch == pytest.approx(rows * 8 / 9)
    assert dali.own_bytes == DALI_BYTES + DALI_IMAGES * batch
    assert Needs(processes=2, start_method="fork").process_bytes == 0
    assert Needs(processes=2, start_method="spawn").process_bytes == 2 * SERVER_BYTES
    assert Needs(processes=2, start_method="forkserver").process_bytes >= 2 * WORKER_BYTES
    with pytest.raises(ValueError, match="prefetch"):
        loader_needs("torch", prefetch=0, **settings)


def halve(image: np.ndarray) -> np.ndarray:
    return np.float32(np.moveaxis(image[::2], 2, 0))


def test_needs_of_transforms_are_results_and_crops_of_each_worker() -> None:
    settings: dict[str, Any] = {"batch_size": 128, "size": (32, 32), "workers": 3, "dtype": torch.uint8}
    crop = 32 * 32 * 3
    for workers_are, rows in (("threads", 3 * 43), ("processes", 3 * 128)):
        plain = loader_needs("torch", workers_are=workers_are, **settings)
        own = loader_needs("torch", workers_are=workers_are, transform=halve, **settings)
        assert own.own_bytes - plain.own_bytes == rows * crop
        slots = (plain.slot_bytes - own.slot_bytes) / (crop - 4 * crop / 2) / 128
        assert slots == (3 + 3 if workers_are == "threads" else 3 * 3 + 3)


@pytest.mark.parametrize(
    ("backend", "more"),
    [
        *((backend, {}) for backend in ("torch", "hdf5", "dali")),
        ("torch", {"transform": halve}),
        ("torch", {"transform": halve, "workers_are": "threads"}),
    ],
)
def test_an_engine_reserves_what_it_announced(
    backend: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The announced needs equal those that the engine requests at its start."""
    asked: list[Needs] = []

    def refuse(needs: Needs, **where: object) -> None:
        asked.append(needs)
        raise LoaderError("E-MEM", "as asked")

    for module in ("process_engine", "thread_engine"):
        monkeypatch.setattr(f"penstock.loaders.run.engine.{module}.ensure", refuse)
    source = MemorySource([b""] * 8)
    monkeypatch.setitem(BACKENDS, "hdf5", replace(BACKENDS["hdf5"], prepare_source=None))
    settings: dict[str, Any] = {"batch_size": 4, "workers": 2, "prefetch": 2}
    if backend != "dali":
        settings["workers_are"] = "processes"  # a custom source gets threads
    settings |= more
    with (
        create_loader(source, backend=backend, pipeline=imagenet_train(16), **settings) as loader,
        pytest.raises(LoaderError, match="as asked"),
    ):
        next(iter(loader))
    assert asked == [loader_needs(backend, size=(16, 16), **settings)]


# ---- the profile without a home folder ----


def test_without_a_home_folder_no_profile_or_folder_called_tilde_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # no HOME, and a user without a name
    monkeypatch.chdir(tmp_path)
    assert load_profile() is None
    with pytest.raises(LoaderError, match="needs a home folder") as caught:
        save_profile(Profile())
    assert "XDG_CONFIG_HOME" in caught.value.fix
    assert os.listdir(tmp_path) == []
    assert profile_path("here.json") == Path("here.json")


@pytest.mark.filterwarnings("ignore:DataLoader.num_workers='auto'. uses num_workers=0:UserWarning")
@pytest.mark.filterwarnings("ignore:DataLoader.tuned=True:UserWarning")
@pytest.mark.parametrize("kind", ["Loader", "DataLoader"])
def test_a_daemonic_process_starts_no_workers(photos: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(workers: int | None) -> Any:
        if kind == "DataLoader":
            return DataLoader(TensorDataset(torch.arange(8)), num_workers="auto" if workers is None else workers)
        return create_loader(photos, pipeline=imagenet_train(32), batch_size=8, workers=workers, decoder="simplejpeg")

    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    with make(2) as loader, pytest.raises(LoaderError, match=r"E-MISUSE.*daemonic.*fix=.*workers=0"):
        next(iter(loader))
    with make(None) as loader:
        assert len(list(loader)) == len(loader)


@pytest.mark.parametrize("kind", ["Loader", "DataLoader", "cache"])
def test_a_removed_working_folder_is_reported(
    photos: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use(workers: int) -> None:
        if kind == "cache":
            build_cache(ImageFolder(photos), tmp_path / f"{workers}.h5", workers=workers)
            return
        settings: dict[str, Any] = {"batch_size": 8, "workers": workers, "workers_are": "processes"}
        numbers = TensorDataset(torch.arange(8))
        with (
            DataLoader(numbers, num_workers=workers)
            if kind == "DataLoader"
            else create_loader(photos, **settings) as it
        ):
            assert len(list(it)) == len(it)

    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(LoaderError, match=r"E-MISUSE.*the working folder has been removed: fix=change"):
        use(2)
    use(0)
    with pytest.raises(LoaderError, match=r"E-MISUSE.*the working folder has been removed: fix=change"):
        create_loader(photos, backend="hdf5", cache="x.h5", batch_size=8)
