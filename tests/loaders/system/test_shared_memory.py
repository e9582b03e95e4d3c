"""SharedArray: the same pages in every process, reserved at creation, no descriptor left behind."""

from __future__ import annotations

import copy
import os
import pickle
import resource
from contextlib import closing

import numpy as np
import pytest
from worker_roles import num_open_files

from penstock.loaders.system import shared_memory
from penstock.loaders.system.shared_memory import SharedArray
from penstock.pipelines.errors import LoaderError


def test_too_much_memory_is_an_error_before_anything_is_reserved() -> None:
    before = num_open_files()
    with pytest.raises(LoaderError, match="need=") as caught:
        SharedArray.create((1 << 50,), np.uint8)
    assert caught.value.code == "E-SHM"
    assert num_open_files() == before


def test_a_failing_reservation_is_an_error_and_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = num_open_files()

    def no_space(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_memory.os, "posix_fallocate", no_space)
    with pytest.raises(LoaderError, match="No space left") as caught:
        SharedArray.create((10,), np.uint8)
    assert caught.value.code == "E-SHM"
    del caught
    assert num_open_files() == before


@pytest.mark.parametrize("num_free", [0, 1, 2])
def test_lack_of_descriptors_is_reported(num_free: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = num_open_files()
    # Counting takes one descriptor. With one free, there is none for the mapping.
    resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1 + num_free, hard))
    try:
        arrays: list[SharedArray] = []
        with pytest.raises(LoaderError) as caught:
            arrays.extend(SharedArray.create((10,), np.uint8) for _ in range(50))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.code == "E-FD"
    arrays.clear()
    del caught
    assert num_open_files() == before


def test_a_holder_of_the_descriptor_cannot_remove_the_pages() -> None:
    with closing(SharedArray.create((8192,), np.uint8)) as shared, pytest.raises(PermissionError):
        os.ftruncate(shared._fd, 0)


def test_a_pickle_outside_a_process_start_is_refused() -> None:
    with closing(SharedArray.create((3,), np.uint8)) as shared:
        with pytest.raises(RuntimeError, match="new process"):
            pickle.dumps(shared)
        with pytest.raises(RuntimeError, match="new process"):
            copy.copy(shared)
