"""SharedArray: the same pages in every process, reserved at creation, no descriptor left behind."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import resource

import numpy as np
import pytest
from worker_roles import double_shared, num_open_files

from penstock.loaders.system import shared_memory
from penstock.loaders.system.shared_memory import SharedArray
from penstock.pipelines.errors import LoaderError


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_started_process_sees_and_writes_the_same_pages(method: str) -> None:
    context = multiprocessing.get_context(method)
    warm_up = context.Process(target=os.getpid)  # starts the forkserver, whose own descriptors stay open
    warm_up.start()
    warm_up.join()
    warm_up.close()
    before = num_open_files()
    with SharedArray.create((3, 5), np.int32) as first, SharedArray.create((2,), np.float64) as second:
        first.array[...] = np.arange(15).reshape(3, 5)
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=double_shared, args=(first, second, first, sender))
        process.start()
        assert receiver.poll(60)
        total, open_with_arrays, same_object = receiver.recv()
        assert receiver.poll(60)
        open_after_close = receiver.recv()
        process.join()
        assert process.exitcode == 0
        assert total == 105
        assert same_object
        if method != "fork":  # a started worker holds the two mappings' descriptors and no more
            assert open_with_arrays - open_after_close == 2
        np.testing.assert_array_equal(first.array, 2 * np.arange(15).reshape(3, 5))
        np.testing.assert_array_equal(second.array, [7.5, 7.5])
        process.close()
        receiver.close()
        sender.close()
    assert num_open_files() == before


def test_the_memory_outlives_close_for_as_long_as_an_array_uses_it() -> None:
    before = num_open_files()
    shared = SharedArray.create((4,), np.uint8)
    view = shared.array[1:]
    shared.close()
    shared.close()
    view[...] = 9
    assert view.tolist() == [9, 9, 9]
    with pytest.raises(ValueError, match="closed"):
        _ = shared.array
    del view
    assert num_open_files() == before


def test_an_array_that_is_dropped_without_close_leaves_no_descriptor() -> None:
    before = num_open_files()
    for _ in range(20):
        SharedArray.create((1000,), np.uint8).array[...] = 1
    assert num_open_files() == before


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
def test_no_descriptor_left_is_said_as_such(num_free: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = num_open_files()
    # One is counted for the counting itself. With one free, there is none for the mapping.
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


def test_the_pages_cannot_be_taken_away_by_a_holder_of_the_descriptor() -> None:
    with SharedArray.create((8192,), np.uint8) as shared, pytest.raises(PermissionError):
        os.ftruncate(shared._fd, 0)


def test_a_pickle_outside_a_process_start_is_refused() -> None:
    with SharedArray.create((3,), np.uint8) as shared:
        with pytest.raises(RuntimeError, match="being started"):
            pickle.dumps(shared)
        with pytest.raises(RuntimeError, match="being started"):
            copy.copy(shared)
