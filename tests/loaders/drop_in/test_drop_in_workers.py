"""Worker processes of the drop-in DataLoader: their state, and how their death, silence and leaks are handled."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_sharer
from pathlib import Path
from typing import Any, Generic

import pytest
import torch
from drop_in_streams import census, children, values
from forked_commands import Commands
from logged_copies import LoggedCopies
from numbered_dataset import Circumstances, Large, Numbered, Stream, as_list, mark
from processes import eventually, in_time
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from penstock.loaders.drop_in import batch_iterator, fetcher, iterators, worker_start
from penstock.loaders.drop_in.data_loader import DataLoader
from penstock.loaders.run.feed.tensor_feed import Sent, Taken, TensorFeed, lock_tensors
from penstock.loaders.run.workers.worker_progress import SAMPLE
from penstock.pipelines.errors import LoaderError

LENGTH, BATCH = 11, 2


@pytest.mark.parametrize("method", [None, "forkserver"])
def test_workers_seeds_threads_and_signals(method: str | None) -> None:
    loader = DataLoader(
        Circumstances(8), 1, num_workers=2, collate_fn=as_list, worker_init_fn=mark, multiprocessing_context=method
    )
    with loader:
        torch.manual_seed(4)
        found = [batch[0] for batch in loader]
        assert loader.worker_init_fn is mark
    assert len({sample["pid"] for sample in found} | {os.getpid()}) == 3
    assert {sample["num_threads"] for sample in found} == {1}
    assert {sample["function_modes"] for sample in found} == {0}
    assert all(sample["ignores_ctrl_c"] for sample in found)
    assert [sample["marked"] for sample in found] == ["worker 0", "worker 1"] * 4
    torch.manual_seed(4)
    theirs = TorchDataLoader(Circumstances(8), 1, num_workers=2, collate_fn=as_list)
    expected = [batch[0] for batch in theirs]
    assert [(s["seed"], s["draws"]) for s in found] == [(s["seed"], s["draws"]) for s in expected]


def test_a_loader_works_again_after_a_dead_worker() -> None:
    with DataLoader(Numbered(40, {17: "SIGKILL"}), 4, num_workers=2) as loader:
        with pytest.raises(LoaderError, match="SIGKILL"):
            list(loader)
        loader.load_state_dict({**loader.state_dict(), "batches": 5})
        assert values(loader) == [[k, k + 1, k + 2, k + 3] for k in range(20, 40, 4)]


def test_a_silent_worker_is_named_with_its_sample_and_prints_its_stack(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_iterator.BatchIterator, "grace_s", 0.5)
    # Forked, so that the stack is printed where this test can read it.
    loader = DataLoader(Numbered(8, {2: "sleep"}), 2, num_workers=1, watchdog_s=1, multiprocessing_context="fork")
    with loader, pytest.raises(LoaderError) as caught:
        list(loader)
    assert (caught.value.code, caught.value.sample) == ("E-TIMEOUT", 2)
    assert "busy or blocked during the batch of samples [2, 3]" in caught.value.cause
    assert "__getitem__" in capfd.readouterr().err


def test_a_dead_worker_is_reported_at_the_start_of_an_epoch(pool: DataLoader[Any]) -> None:
    list(pool)
    iterator: Any = pool._iterator
    os.kill(iterator._workers[1].pid, signal.SIGKILL)
    # The sockets of an ending process close before its exit can be seen, so an error on them is not conclusive.
    with pytest.raises(LoaderError, match="killed by signal: SIGKILL"):
        iterator._raise_if_dead(ConnectionResetError())
    with pytest.raises(LoaderError, match="killed by signal: SIGKILL between two batches"):
        iter(pool)
    assert sorted(k for batch in values(pool) for k in batch) == list(range(LENGTH))


NARROW = """
import resource
from penstock.loaders.drop_in.data_loader import DataLoader
from penstock.pipelines.errors import LoaderError
from numbered_dataset import Numbered, refuse_shared_memory

if __name__ == "__main__":
    print([batch.tolist() for batch in DataLoader(Numbered(4), 2, num_workers=1, multiprocessing_context="forkserver")])
    try:
        list(DataLoader(Numbered(4), num_workers=1, worker_init_fn=refuse_shared_memory))
    except LoaderError as error:
        print(error.code, error.cause)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    try:
        kept = list(DataLoader(Numbered(2000), num_workers=2))
    except LoaderError as error:
        print(error.code, error.fix)
    resource.setrlimit(resource.RLIMIT_NOFILE, (70, 70))
    try:
        list(DataLoader(Numbered(2000), num_workers=2))
    except LoaderError as error:
        print(error.code, error.cause)
"""


def test_a_lack_of_shared_memory_or_descriptors_is_reported(tmp_path: Path, commands: Commands) -> None:
    script = tmp_path / "script.py"
    script.write_text(NARROW)
    code, command = commands.run(script=script)
    assert code == 0, command.errors
    for segment in commands.shared_segments():  # torch leaves segments behind for which there was no space
        commands.seen(f"/dev/shm/{segment}").unlink()
    served, shared_memory, receiving, starting = command.output.splitlines()
    assert served == "[[0, 1], [2, 3]]"  # a script with a main guard does not get the advice to add one
    assert shared_memory.startswith("E-SHM")
    assert "unable to" in shared_memory
    assert receiving.startswith("E-FD keep fewer batches")
    assert starting.startswith("E-FD open files: need=")


def test_torchs_timeout_raises_torchs_error_and_the_batch_comes_later() -> None:
    with DataLoader(Numbered(4, {0: "wait long"}), num_workers=1, timeout=0.5) as loader:
        batches = iter(loader)
        with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.5 seconds") as caught:
            next(batches)
        assert type(caught.value) is RuntimeError
        first = None
        while first is None:  # each time-out takes half of a second, the sample 1.2 s
            with contextlib.suppress(RuntimeError):
                first = next(batches)
        assert values([first, *batches]) == [[0], [1], [2], [3]]


def test_leaving_an_epoch_leaks_nothing() -> None:
    def leave_early(loader: DataLoader[Any], times: int) -> None:
        for _ in range(times):
            for _ in zip(loader, range(3), strict=False):
                pass

    with DataLoader(Numbered(1000), 2, num_workers=1, persistent_workers=True) as loader:
        leave_early(loader, 2)
        before = census()
        leave_early(loader, 8)
        after = census()
        assert after[:2] == before[:2]
        assert after[2] <= before[2] + 4  # a batch that waits in a queue holds descriptors; a leak would be 8
        assert loader.epoch == 9
    closed = census()
    assert closed[0] == before[0] - 1
    leave_early(DataLoader(Numbered(1000), 2, num_workers=1), 3)
    assert census() == closed


def test_a_dropped_loader_ends_its_workers_at_once() -> None:
    loader = DataLoader(Numbered(1000), 2, num_workers=1, persistent_workers=True)
    next(iter(loader))
    worker = loader._iterator._workers[0].pid  # type: ignore[union-attr]
    assert worker in children()
    gc.disable()
    try:
        del loader
        assert worker not in children()
    finally:
        gc.enable()


def fake_accelerator(monkeypatch: pytest.MonkeyPatch, pin: Callable[[Any, Any], Any]) -> None:
    """Make torch believe in an accelerator; `pin` returns its pinned memory."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr("torch.utils.data._utils.pin_memory.pin_memory", pin)


def test_batches_are_pinned_and_a_dead_worker_is_named(monkeypatch: pytest.MonkeyPatch, pool: DataLoader[Any]) -> None:
    list(pool)
    fake_accelerator(monkeypatch, lambda data, device: data if data is None else ("pinned", data.tolist()))
    before = census()
    with DataLoader(Numbered(400, {30: "SIGKILL"}), 2, num_workers=1, pin_memory=True) as loader:
        assert next(iter(loader)) == ("pinned", [0, 1])
        # Leaving and closing while batches are in flight: the thread ends before the workers that send to it.
        loader.set_epoch(1)
        next(iter(loader))
        with pytest.raises(LoaderError) as caught:
            list(loader)
        assert caught.value.sample == 30
    del caught, loader
    assert census() == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_pinning_thread_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = threading.Event()

    def pin(data: Any, device: Any) -> Any:
        if isinstance(data, torch.Tensor) and 4 in data.tolist():
            taken.wait(60)  # torch gives up at once, even if pinned batches are waiting
            raise SystemExit  # ends the thread silently
        return data if data is None else ("pinned", data.tolist())

    fake_accelerator(monkeypatch, pin)
    monkeypatch.setattr(batch_iterator, "_EXIT_S", 0.5)
    with DataLoader(Numbered(8), 2, num_workers=1, pin_memory=True) as loader:
        batches = iter(loader)
        assert [next(batches), next(batches)] == [("pinned", [0, 1]), ("pinned", [2, 3])]
        taken.set()
        with pytest.raises(LoaderError, match="the thread that pins memory ended") as caught:
            next(batches)
    assert (caught.value.code, "pin_memory=False" in caught.value.fix) == ("E-WORKER", True)


class OnHost(TensorFeed[Any, Any], Generic[Taken, Sent]):
    """A feed that believes in its device; the tensors stay where they are."""

    copied = LoggedCopies()

    def __init__(self, source: Any, ready: Any, device: torch.device) -> None:
        super().__init__(source, ready, torch.device("cpu"), copies=self.copied)
        self.device = device

    def _take(self, copies: Any) -> Any:
        return lock_tensors(self._source(), copies.pinned)


class Odd(torch.Tensor):
    """A type that torch's own pinning would lose."""


def odd_batch(samples: list[int]) -> dict[str, Any]:
    numbers = torch.tensor(samples)
    return {"plain": numbers, "odd": numbers.as_subclass(Odd), "sparse": numbers.to_sparse(), "text": "a"}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # from torch, which sends the tensor
@pytest.mark.parametrize("asked", [False, True], ids=["device alone", "pin_memory"])
@pytest.mark.parametrize("dataset", [Numbered(9), Stream(9)], ids=["map", "iterable"])
def test_for_a_device_a_thread_page_locks_the_batches(
    dataset: Any, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer's thread then copies nothing. Without pin_memory=True each type of tensor is kept."""
    by_torch: list[Any] = []
    locked: dict[int, threading.Thread] = {}  # by address
    chosen, threads_on = [0], []

    def pin(data: Any, device: Any = None) -> Any:
        return data.pin_memory() if isinstance(data, fetcher.Fetched) else (by_torch.append(data), data)[1]

    def lock(like: torch.Tensor) -> torch.Tensor:
        made = torch.empty_like(like)
        locked[made.data_ptr()] = threading.current_thread()
        return made

    @contextlib.contextmanager
    def choose(device: torch.device) -> Iterator[None]:
        chosen.append(device.index)
        yield
        chosen.pop()

    fake_accelerator(monkeypatch, pin)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device", choose)
    monkeypatch.setattr(torch.accelerator, "set_device_index", threads_on.append)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: chosen[-1])
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor.data_ptr() in locked)
    monkeypatch.setattr(fetcher, "pinned_like", lock)
    monkeypatch.setattr(iterators, "TensorFeed", OnHost)
    monkeypatch.setattr(OnHost, "copied", LoggedCopies())
    with DataLoader(dataset, 2, num_workers=1, collate_fn=odd_batch, pin_memory=asked, device="cuda:1") as loader:
        batches = list(loader)
        assert loader.pin_memory == asked
    assert [batch["plain"].tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]
    assert {type(batch["odd"]) for batch in batches} == {Odd}
    assert {batch["sparse"].layout for batch in batches} == {torch.sparse_coo}
    assert (threads_on, chosen) == ([1], [0])  # on another GPU the thread would create a context
    if asked:
        assert [type(batch) for batch in by_torch].count(dict) == 5
    else:
        assert [batch["plain"].data_ptr() in locked for batch in batches] == [True] * 5
        assert len(set(locked.values())) == 1
        assert threading.main_thread() not in locked.values()
        assert not OnHost.copied.locked


# torch's thread may be waiting for a descriptor of the worker when the worker is killed.
@pytest.mark.filterwarnings("ignore:Exception in thread:pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.parametrize("state", ["stopped (SIGSTOP)", "busy or blocked"])
def test_a_worker_that_keeps_the_memory_of_its_batches_is_named(
    state: str, pin_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their messages have arrived; a thread of the worker must still send the descriptors of their tensors."""
    monkeypatch.setattr(batch_iterator.BatchIterator, "grace_s", 0.5)
    come = threading.Event()
    if pin_memory:
        fake_accelerator(monkeypatch, lambda data, device: (come.wait(60), data)[1])
    stops, workers, last = "SIGSTOP" in state, 1 if pin_memory else 2, 5 if pin_memory else 7
    harm = {} if pin_memory else {0: "sleep"}  # the awaited batch is not the one that arrived
    dataset = Numbered(20, harm if stops else {**harm, last - 1: "wait", last: "hold the interpreter lock"})
    settings = {"num_workers": workers, "prefetch_factor": 4 - workers, "pin_memory": pin_memory}
    with DataLoader(dataset, 2, watchdog_s=1, **settings) as loader:
        batches: Any = iter(loader)
        assert eventually(lambda: batches._progress.table[workers - 1, SAMPLE] == last, 30)
        victim = batches._workers[-1].pid
        if stops:
            assert eventually(batches._worker_result_queue._reader.poll, 30)  # a message of the victim
            os.kill(victim, signal.SIGSTOP)
        come.set()
        started = time.monotonic()
        with pytest.raises(LoaderError) as caught:
            list(batches)
        assert in_time(started)
    assert (caught.value.code, caught.value.worker) == ("E-TIMEOUT", victim)
    assert state in caught.value.cause
    assert (caught.value.sample == last) == (not stops)


@pytest.mark.parametrize("pin_memory", [False, True])
def test_a_worker_killed_while_it_writes_a_large_batch_causes_no_hang(
    pin_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pin_memory:
        fake_accelerator(monkeypatch, lambda data, device: data)
    settings = {"num_workers": 2, "pin_memory": pin_memory, "watchdog_s": 100}
    with DataLoader(Large(8), 1, collate_fn=as_list, **settings) as loader:
        batches: Any = iter(loader)
        next(batches)
        time.sleep(0.5)  # all are writing more than a pipe can buffer
        for worker in batches._workers:
            os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(LoaderError) as caught:
            list(batches)
        assert caught.value.code == "E-WORKER"


def test_a_worker_that_hangs_during_its_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_iterator.BatchIterator, "grace_s", 0.5)
    settings = {"num_workers": 1, "timeout": 300, "multiprocessing_context": "forkserver"}
    with DataLoader(HangsAtStart(4), 2, watchdog_s=1, **settings) as loader, pytest.raises(LoaderError) as caught:
        list(loader)
    assert caught.value.code == "E-TIMEOUT"
    assert "while it was being started" in caught.value.cause


def test_a_worker_says_nothing_when_its_parent_ends_while_it_fetches_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: reported.append(error))
    worker_start.ignore_lost_receivers()
    with open(os.devnull, "rb") as shared:
        lost, fetched = (resource_sharer.DupFd(shared.fileno()) for _ in range(2))  # what a worker sends
    try:
        with socket.socket(socket.AF_UNIX) as receiver:
            receiver.connect(lost._id[0])  # type: ignore[attr-defined]
        os.close(fetched.detach())  # the thread has served the lost receiver by then
        assert reported == []
        sys.excepthook(ValueError, error := ValueError("the worker's own"), None)
        assert reported == [error]
    finally:
        resource_sharer.stop()  # type: ignore[no-untyped-call]


def test_silence_without_a_limit_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_iterator, "DEFAULT_WATCHDOG_S", 0.1)
    with (
        DataLoader(Numbered(4, {0: "wait long", 2: "wait long"}), 2, num_workers=1) as loader,
        pytest.warns(
            RuntimeWarning, match=r"during the batch of samples \[0, 1\] has made no progress"
        ) as caught_warnings,
    ):
        assert values(loader) == [[0, 1], [2, 3]]
    assert len(caught_warnings) == 1


def test_a_slow_iterable_data_set_is_not_silent() -> None:
    with DataLoader(Slow(5), 5, num_workers=1, watchdog_s=1) as loader:
        assert values(loader) == [list(range(5))]


class HangsAtStart(Numbered):
    """Hangs while it is sent to a worker."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        time.sleep(1000)


class Slow(IterableDataset[int]):
    """One batch takes longer than the watchdog waits, one sample does not."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        for sample in range(self.length):
            time.sleep(0.3)
            yield sample


SCRIPT = """
from penstock.loaders.drop_in.data_loader import DataLoader

class Squares:
    def __len__(self): return 4
    def __getitem__(self, index): return index * index

loader = DataLoader(Squares(), 2, num_workers=1, multiprocessing_context="forkserver")
print([batch.tolist() for batch in loader])
"""


def test_a_script_without_main_guard_gets_the_code_to_add(tmp_path: Path, commands: Commands) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    code, command = commands.run(script=script)
    errors = command.errors
    assert code == 1, errors
    assert "LoaderError[E-MISUSE]" in errors
    last = errors.strip().splitlines()[-1]
    assert "LoaderError[E-WORKER]" in last
    assert "exited with 1 while it was being started" in last
    assert errors.count('under `if __name__ == "__main__":`') >= 2
    assert "at the top level of a module, not under it" in last
