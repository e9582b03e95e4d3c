"""The drop-in DataLoader: torch's behaviour where torch's arguments speak, and what is added to it."""

from __future__ import annotations

import gc
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from numbered_dataset import Circumstances, Large, Numbered, Pair, Stream, Unpicklable, as_list, mark
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, Subset
from torch.utils.data import DataLoader as TorchDataLoader

from penstock.loaders.drop_in import worker_start
from penstock.loaders.drop_in.data_loader import DataLoader
from penstock.loaders.drop_in.worker_start import choose_context, why_not_started_clean
from penstock.loaders.stream.order import Permutation
from penstock.loaders.system.machine import default_workers
from penstock.pipelines.errors import LoaderError

pytestmark = [
    # torch is loaded, and has threads, wherever these tests fork on purpose
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
LENGTH, BATCH = 11, 2


@pytest.fixture(scope="module")
def pool() -> Iterator[DataLoader[Any]]:
    """A shuffled loader with two workers, started once for the tests that only look at its stream."""
    with DataLoader(Numbered(LENGTH), BATCH, shuffle=True, num_workers=2, seed=5) as loader:
        yield loader


def values(batches: Any) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


# torch's arguments


def test_arguments_are_torchs_then_ours() -> None:
    theirs = list(inspect.signature(TorchDataLoader).parameters.values())
    ours = list(inspect.signature(DataLoader).parameters.values())
    assert [(p.name, p.kind) for p in ours[: len(theirs)]] == [(p.name, p.kind) for p in theirs]
    assert {p.name for p in ours[len(theirs) :]} == {"device", "seed", "watchdog_s"}
    assert all(p.kind is p.KEYWORD_ONLY for p in ours[len(theirs) :])
    tuned = {"num_workers", "pin_memory", "persistent_workers"}
    changed = {mine.name for mine, other in zip(ours, theirs, strict=False) if mine.default != other.default}
    assert changed == tuned


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize(
    "arguments",
    [
        dict,
        lambda: {"batch_size": 4},
        lambda: {"batch_size": 4, "drop_last": True},
        lambda: {"batch_size": None},
        lambda: {"batch_size": 3, "sampler": [5, 1, 1, 4]},
        lambda: {"batch_sampler": [[1, 2], [3], [4, 5, 6]]},
        lambda: {"batch_size": 3, "shuffle": True, "generator": seeded()},
        lambda: {"batch_size": 3, "sampler": RandomSampler(range(LENGTH), replacement=True, generator=seeded())},
        lambda: {"batch_size": 3, "collate_fn": as_list},
        lambda: {"batch_size": 3, "timeout": 0, "in_order": False, "worker_init_fn": mark},
    ],
)
def test_batches_are_torchs(arguments: Callable[[], dict[str, Any]]) -> None:
    theirs = TorchDataLoader(Numbered(LENGTH), **arguments())
    ours = DataLoader(Numbered(LENGTH), num_workers=0, **arguments())
    assert len(ours) == len(theirs)
    for _ in range(2):
        assert values(ours) == values(theirs)
    assert (ours.batch_size, ours.drop_last) == (theirs.batch_size, theirs.drop_last)
    assert len(iter(ours)) == len(iter(theirs))
    assert isinstance(ours.sampler, type(theirs.sampler))
    assert isinstance(ours.batch_sampler, type(theirs.batch_sampler))


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"num_workers": 0, "prefetch_factor": 2},
        {"num_workers": 0, "persistent_workers": True},
        {"num_workers": 1, "prefetch_factor": -2},
        {"sampler": [1], "shuffle": True},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_sampler": [[1]], "shuffle": True},
        {"batch_size": None, "drop_last": True},
        {"batch_size": 0},
        {"dataset": Stream(3), "shuffle": True},
        {"dataset": Stream(3), "sampler": [1]},
        {"dataset": Stream(3), "batch_sampler": [[1]]},
        {"dataset": Numbered(0), "shuffle": True},
        {"num_workers": 1, "multiprocessing_context": "threads"},
        {"num_workers": 1, "multiprocessing_context": 3},
        {"num_workers": 0, "multiprocessing_context": "fork"},
    ],
)
def test_impossible_arguments_raise_what_torch_raises(arguments: dict[str, Any]) -> None:
    said = []
    for kind in (TorchDataLoader, DataLoader):
        with pytest.raises((ValueError, TypeError)) as caught:
            kind(**{"dataset": Numbered(4), **arguments})
        said.append((caught.type, str(caught.value)))
    assert said[0] == said[1]


@pytest.mark.parametrize("arguments", [{"seed": -1}, {"seed": 1 << 64}, {"watchdog_s": 0}])
def test_impossible_arguments_of_ours_raise(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        DataLoader(Numbered(4), **arguments)


def test_defaults_are_tuned_and_nothing_starts_before_the_first_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()
    loader = DataLoader(Numbered(4))
    assert (loader.num_workers, loader.persistent_workers) == (default_workers(), True)
    assert loader.prefetch_factor is not None
    assert loader.prefetch_factor >= 2
    assert children() == before
    alone = DataLoader(Numbered(4), num_workers=0)
    assert (alone.persistent_workers, alone.prefetch_factor, alone.pin_memory) == (False, None, False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    pinned = {device: DataLoader(Numbered(4), device=device).pin_memory for device in (None, "cuda", "cuda:1", "cpu")}
    assert pinned == {None: True, "cuda": True, "cuda:1": True, "cpu": False}
    assert not DataLoader(Numbered(4), pin_memory=False).pin_memory
    monkeypatch.setattr(worker_start.multiprocessing.current_process(), "_config", {"daemon": True})
    assert DataLoader(Numbered(4)).num_workers == 0


def test_too_many_workers_are_warned_of_as_torch_warns() -> None:
    with pytest.warns(UserWarning, match="This DataLoader will create 4000 worker processes"):
        DataLoader(Numbered(4), num_workers=4000)


# order


@pytest.mark.parametrize("length", [1, 2, 7, 5000])
def test_an_epoch_is_a_permutation_that_seed_and_epoch_decide(length: int) -> None:
    loader = DataLoader(Numbered(length), 3, shuffle=True, num_workers=0, seed=9)
    epochs = [[k for batch in values(loader) for k in batch] for _ in range(2)]
    for epoch, order in enumerate(epochs):
        assert order == Permutation.of_epoch(length, 9, epoch)(np.arange(length)).tolist()
        assert sorted(order) == list(range(length))
    other = DataLoader(Numbered(length), 3, shuffle=True, num_workers=0, seed=10)
    if length > 2:
        assert epochs[0] != epochs[1]
        assert [k for batch in values(other) for k in batch] != epochs[0]


def test_the_order_does_not_depend_on_workers(pool: DataLoader[Any]) -> None:
    alone = DataLoader(Numbered(LENGTH), BATCH, shuffle=True, num_workers=0, seed=5)
    for epoch in range(3):
        pool.set_epoch(epoch)
        assert pool.epoch == alone.epoch == epoch
        assert values(pool) == values(alone)


def test_shuffling_draws_nothing_from_torch() -> None:
    states = []
    for loader in (TorchDataLoader(Numbered(9), 2), DataLoader(Numbered(9), 2, shuffle=True, num_workers=0)):
        torch.manual_seed(1)
        list(loader)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_a_huge_dataset_is_opened_anywhere() -> None:
    length = 10**9
    for shuffle in (True, False):
        loader = DataLoader(Numbered(length), 10, shuffle=shuffle, num_workers=0)
        loader.load_state_dict({**loader.state_dict(), "batches": 70_000_000})
        batch = next(iter(loader)).tolist()
        positions = np.arange(700_000_000, 700_000_010)
        assert batch == (Permutation.of_epoch(length, 0, 0)(positions) if shuffle else positions).tolist()


def test_an_unused_generator_still_seeds_the_workers_and_samplers_are_kept() -> None:
    sampler = RandomSampler(range(LENGTH), generator=seeded())
    loader = DataLoader(Numbered(LENGTH), sampler=sampler, num_workers=0)
    assert loader.sampler is sampler
    batch_sampler = BatchSampler(sampler, 2, False)
    assert DataLoader(Numbered(LENGTH), batch_sampler=batch_sampler, num_workers=0).batch_sampler is batch_sampler
    assert isinstance(DataLoader(Numbered(LENGTH), num_workers=0).sampler, SequentialSampler)


# state


def stream(loader: DataLoader[Any], epochs: int) -> list[tuple[int, Any]]:
    """The rest of `epochs` epochs, each batch with its epoch."""
    found = []
    while loader.epoch < epochs:
        epoch = loader.epoch
        found += [(epoch, batch) for batch in values(loader)]
    return found


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_resume_at_every_boundary(shuffle: bool, drop_last: bool) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(Numbered(LENGTH), BATCH, shuffle=shuffle, drop_last=drop_last, num_workers=0, seed=5)

    whole = stream(loader(), 2)
    assert len(whole) == 2 * len(loader())
    for boundary in range(len(whole)):
        first, taken = loader(), 0
        while taken < boundary:
            for _ in first:
                taken += 1
                if taken == boundary:
                    break
        again = loader()
        again.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert again.state_dict() == first.state_dict()
        # The resume is left and resumed too.
        batch = next(iter(again)).tolist()
        third = loader()
        third.load_state_dict(again.state_dict())
        assert [batch, *(b for _, b in stream(third, 2))] == [b for _, b in whole[boundary:]]


def test_resume_with_other_workers(pool: DataLoader[Any]) -> None:
    alone = DataLoader(Numbered(LENGTH), BATCH, shuffle=True, num_workers=0, seed=5)
    whole = stream(alone, 2)
    steps = len(alone)
    for boundary in range(2 * steps):
        pool.set_epoch(7)
        state = {**alone.state_dict(), "epoch": boundary // steps, "batches": boundary % steps}
        pool.load_state_dict(state)
        assert pool.state_dict() == state
        batches = iter(pool)
        assert next(batches).tolist() == whole[boundary][1]
        # Batches were prefetched by now; the state knows only of the one that was delivered.
        alone.load_state_dict(pool.state_dict())
        assert stream(alone, 2) == whole[boundary + 1 :]


def test_after_the_last_batch_the_state_is_the_next_epochs() -> None:
    loader = DataLoader(Numbered(4), 2, num_workers=0)
    places = [(loader.state_dict()["epoch"], loader.state_dict()["batches"]) for _ in loader]
    assert places == [(0, 1), (1, 0)]
    assert len(list(loader)) == 2
    assert loader.epoch == 2


def test_an_epoch_left_early_is_over_and_one_not_begun_is_not() -> None:
    loader = DataLoader(Numbered(8), 2, num_workers=0)
    iter(loader)
    assert values(loader)[0] == [0, 1]
    assert loader.epoch == 1
    next(iter(loader))
    assert loader.epoch == 1
    assert len(list(loader)) == 4
    assert loader.epoch == 3


def test_set_epoch_keeps_a_place_that_was_loaded() -> None:
    loader = DataLoader(Numbered(8), 2, num_workers=0)
    state = {**loader.state_dict(), "epoch": 3, "batches": 2}
    loader.load_state_dict(state)
    loader.set_epoch(3)
    assert values(loader) == [[4, 5], [6, 7]]
    loader.load_state_dict(state)
    loader.set_epoch(4)
    assert len(list(loader)) == 4
    with pytest.raises(ValueError, match="epoch"):
        loader.set_epoch(-1)


def test_a_state_of_another_stream_is_refused() -> None:
    def loader(**arguments: Any) -> DataLoader[Any]:
        return DataLoader(**{"dataset": Numbered(10), "batch_size": 2, "shuffle": True, "num_workers": 0} | arguments)

    mine = loader()
    state = mine.state_dict()
    others = [{"dataset": Numbered(11)}, {"batch_size": 5}, {"shuffle": False}, {"seed": 1}, {"drop_last": True}]
    others += [{"sampler": range(10), "shuffle": None}, {"batch_size": None}, {"generator": seeded()}]
    strangers = [loader(**other).state_dict() for other in others]
    strangers += [{**state, "version": 2}, {**state, "epoch": -1}, {**state, "epoch": 1 << 32}, {**state, "epoch": "1"}]
    strangers += [{**state, "batches": -1}, {**state, "batches": 11}, {**state, "batches": True}, {**state, "more": 1}]
    strangers += [{k: v for k, v in state.items() if k != name} for name in state]
    touched = {name for other in strangers for name in state if name in other and other[name] != state[name]}
    assert touched == set(state)
    for stranger in [*strangers, [], None, "state"]:
        with pytest.raises(LoaderError) as caught:
            mine.load_state_dict(stranger)  # type: ignore[arg-type]
        assert caught.value.code == "E-STATE"
    mine.load_state_dict(state)
    assert len(list(mine)) == 5


class Unsized:
    """A dataset without a length, as one for custom samplers may be."""

    def __getitem__(self, key: str) -> str:
        return key.upper()


@pytest.mark.parametrize(
    "arguments",
    [
        lambda: {"batch_size": 3, "sampler": [4, 8, 1, 1, 0, 2, 7]},
        lambda: {"batch_sampler": [[1, 2], [3], [4, 5, 6]]},
        lambda: {"batch_size": None, "sampler": [3, 1, 2]},
        lambda: {"batch_size": 3, "shuffle": True, "generator": seeded()},
        lambda: {"batch_size": 2, "sampler": iter_only(6)},
    ],
)
def test_resume_draws_from_a_sampler_of_the_users(arguments: Callable[[], dict[str, Any]]) -> None:
    whole = values(DataLoader(Numbered(LENGTH), num_workers=0, **arguments()))
    for boundary in range(len(whole)):
        first = DataLoader(Numbered(LENGTH), num_workers=0, **arguments())
        batches = iter(first)
        assert [values([next(batches)])[0] for _ in range(boundary)] == whole[:boundary]
        again = DataLoader(Numbered(LENGTH), num_workers=0, **arguments())
        again.load_state_dict(first.state_dict())
        assert values(again) == whole[boundary:]
        assert again.epoch == 1


class iter_only:
    """A sampler without a length: torch allows it."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


def test_a_dataset_without_length_and_keys_that_are_no_numbers() -> None:
    dataset: Any = Unsized()
    loader = DataLoader(dataset, 2, sampler=["a", "b", "c"], num_workers=0)
    assert next(iter(loader)) == ["A", "B"]
    state = loader.state_dict()
    assert state["samples"] is None
    loader.load_state_dict(state)
    assert list(loader) == [["C"]]


def test_a_distributed_sampler_is_told_the_epoch() -> None:
    sampler: DistributedSampler[int] = DistributedSampler(range(12), num_replicas=2, rank=1, seed=4)  # type: ignore[arg-type]
    loader = DataLoader(Numbered(12), 2, sampler=sampler, num_workers=0)
    loader.set_epoch(2)
    assert sampler.epoch == 2
    whole = values(loader)
    loader.load_state_dict({**loader.state_dict(), "epoch": 2, "batches": 1})
    sampler.set_epoch(0)
    loader.load_state_dict({**loader.state_dict(), "epoch": 2, "batches": 1})
    assert values(loader) == whole[1:]
    batched = DataLoader(Numbered(12), batch_sampler=BatchSampler(sampler, 2, False), num_workers=0)
    batched.set_epoch(9)
    assert sampler.epoch == 9


def test_without_order_there_is_no_place() -> None:
    loader = DataLoader(Numbered(4), num_workers=1, in_order=False)
    for ask in (loader.state_dict, lambda: loader.load_state_dict({})):
        with pytest.raises(LoaderError, match="in_order=False") as caught:
            ask()
        assert caught.value.code == "E-MISUSE"


def test_a_sampler_that_is_asked_itself_gives_the_epochs_order() -> None:
    loader = DataLoader(Numbered(9), 2, shuffle=True, num_workers=0)
    sampler: Any = loader.batch_sampler
    for _ in range(2):
        batches = values(loader)
        assert list(sampler) == batches


# iterators


def test_iterators_that_share_no_workers_may_run_side_by_side() -> None:
    loader = DataLoader(Numbered(4), 2, num_workers=0)
    pairs = [(a.tolist(), b.tolist()) for a in loader for b in loader]
    assert pairs == [([0, 1], [0, 1]), ([0, 1], [2, 3]), ([2, 3], [0, 1]), ([2, 3], [2, 3])]


def test_an_iterator_whose_place_was_taken_says_so(pool: DataLoader[Any]) -> None:
    old = iter(pool)
    next(old)
    new = iter(pool)
    with pytest.raises(LoaderError, match="another iteration") as caught:
        next(old)
    assert caught.value.code == "E-MISUSE"
    next(new)
    pool.set_epoch(50)
    with pytest.raises(LoaderError, match="another place"):
        next(new)
    loader = DataLoader(Numbered(4), num_workers=0)
    batches = iter(loader)
    loader.close()
    loader.close()
    with pytest.raises(LoaderError, match="closed"):
        next(batches)
    with pytest.raises(LoaderError, match="closed"):
        iter(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_of_the_dataset_is_torchs_and_the_rest_can_be_had(num_workers: int) -> None:
    said, rest = [], []
    for kind in (TorchDataLoader, DataLoader):
        # The same method for both: only the stack above the worker's loop may differ.
        context = {"multiprocessing_context": "forkserver"} if num_workers else {}
        loader: Any = kind(Numbered(8, {3: "raise"}), 2, num_workers=num_workers, **context)
        batches = iter(loader)
        next(batches)
        with pytest.raises(KeyError) as caught:
            next(batches)
        said.append([line for line in str(caught.value).splitlines() if "File" not in line and "^" not in line][-1])
        rest.append(values(batches))
    assert said[0] == said[1]
    assert "sample 3" in said[1]
    assert rest[0] == rest[1] == [[4, 5], [6, 7]]
    loader.close()


def test_a_batch_that_cannot_be_sent_is_an_error_and_no_hang() -> None:
    with DataLoader(Numbered(8, {3: "unsendable"}), 2, num_workers=1, collate_fn=as_list, watchdog_s=60) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(TypeError, match=r"(?s)worker process 0, sending a batch.*cannot pickle .*lock"):
            next(batches)
        assert values(batches) == [[4, 5], [6, 7]]


def test_a_batch_that_failed_is_tried_again_by_a_resume_and_counted_when_it_was_passed_over() -> None:
    dataset = Numbered(8, {3: "raise"})
    loader = DataLoader(dataset, 2, num_workers=0)
    batches = iter(loader)
    next(batches)
    with pytest.raises(KeyError):
        next(batches)
    assert loader.state_dict()["batches"] == 1
    next(batches)
    assert loader.state_dict()["batches"] == 3


# worker processes


def test_what_a_worker_is() -> None:
    loader = DataLoader(Circumstances(8), 1, num_workers=2, collate_fn=as_list, worker_init_fn=mark)
    with loader:
        torch.manual_seed(4)
        found = [batch[0] for batch in loader]
        assert loader.worker_init_fn is mark
        assert loader.multiprocessing_context.get_start_method() == "forkserver"
    assert len({sample["pid"] for sample in found} | {os.getpid()}) == 3
    assert {sample["num_threads"] for sample in found} == {1}
    assert all(sample["ignores_ctrl_c"] for sample in found)
    assert [sample["marked"] for sample in found] == ["worker 0", "worker 1"] * 4
    torch.manual_seed(4)
    theirs = TorchDataLoader(Circumstances(8), 1, num_workers=2, collate_fn=as_list)
    expected = [batch[0] for batch in theirs]
    assert [(s["seed"], s["draws"]) for s in found] == [(s["seed"], s["draws"]) for s in expected]


@pytest.mark.parametrize("harm", ["SIGKILL", "SIGSEGV"])
def test_a_dead_worker_is_named_with_its_sample_and_the_loader_goes_on(harm: str) -> None:
    loader = DataLoader(Numbered(40, {17: harm}), 4, num_workers=2)
    with loader:
        batches = iter(loader)
        workers = {worker.pid for worker in loader._iterator._workers}  # type: ignore[union-attr]
        with pytest.raises(LoaderError) as caught:
            list(batches)
        error = caught.value
        assert (error.code, error.sample) == ("E-WORKER", 17)
        assert error.worker in workers
        assert f"killed by {harm} with the batch of samples [16, 17, 18, 19] in hand" in error.cause
        assert not workers & children()
        loader.load_state_dict({**loader.state_dict(), "batches": 5})
        assert values(loader) == [[k, k + 1, k + 2, k + 3] for k in range(20, 40, 4)]


@pytest.mark.parametrize("harm", ["sleep", "SIGSTOP"])
def test_a_silent_worker_is_named_with_its_sample(harm: str, capfd: pytest.CaptureFixture[str]) -> None:
    # Forked, so that the stack is written to where this test looks.
    dataset = Numbered(8, {2: harm})
    loader = DataLoader(dataset, 2, num_workers=1, watchdog_s=1, multiprocessing_context="fork")
    with loader, pytest.raises(LoaderError) as caught:
        list(loader)
    error = caught.value
    assert (error.code, error.sample) == ("E-TIMEOUT", 2)
    assert "with the batch of samples [2, 3] in hand" in error.cause
    assert ("stopped (SIGSTOP)" if harm == "SIGSTOP" else "busy or blocked") in error.cause
    assert ("__getitem__" in capfd.readouterr().err) == (harm == "sleep")


def test_a_program_that_was_stopped_as_a_whole_was_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-Z and `fg` the clock has moved on, and no worker has: all of them stood still."""
    clock, ahead = time.monotonic, [0.0]
    with DataLoader(Numbered(8), 2, num_workers=1, watchdog_s=60) as loader:
        next(iter(loader))
        iterator: Any = loader._iterator
        pid = iterator._workers[0].pid
        monkeypatch.setattr(time, "monotonic", lambda: clock() + ahead[0])
        assert iterator._silent(0, pid) is None
        ahead[0] += 3600
        assert iterator._silent(0, pid) is None
        errors = []
        for _ in range(200):  # but looks that follow each other add up
            ahead[0] += 0.5
            errors.append(iterator._silent(0, pid))
            if errors[-1] is not None:
                break
        assert [error.code for error in errors if error is not None] == ["E-TIMEOUT"]
        assert len(errors) > 100


def test_a_worker_that_hangs_in_an_epoch_that_was_left_is_named() -> None:
    with DataLoader(Numbered(8, {2: "sleep"}), 2, num_workers=1, watchdog_s=3) as loader:
        next(iter(loader))
        with pytest.raises(LoaderError) as caught:
            iter(loader)
        assert (caught.value.code, caught.value.sample) == ("E-TIMEOUT", 2)


def test_a_worker_killed_while_it_writes_a_large_batch_hangs_nobody() -> None:
    with DataLoader(Large(8), 1, num_workers=2, collate_fn=as_list, watchdog_s=100) as loader:
        batches = iter(loader)
        next(batches)
        time.sleep(0.5)  # both are writing more than a pipe holds
        for worker in loader._iterator._workers:  # type: ignore[union-attr]
            os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(LoaderError) as caught:
            list(batches)
        assert caught.value.code == "E-WORKER"


def test_a_dead_worker_is_seen_at_the_start_of_an_epoch(pool: DataLoader[Any]) -> None:
    list(pool)
    iterator: Any = pool._iterator
    os.kill(iterator._workers[1].pid, signal.SIGKILL)
    # The sockets of a process that ends are closed before its end can be seen: what they say is not the last word.
    with pytest.raises(LoaderError, match="killed by SIGKILL"):
        iterator._raise_if_dead(ConnectionResetError())
    with pytest.raises(LoaderError, match="killed by SIGKILL between two batches"):
        iter(pool)
    assert sorted(k for batch in values(pool) for k in batch) == list(range(LENGTH))


NARROW = """
import os, resource, sys
from penstock.loaders.drop_in.data_loader import DataLoader
from penstock.pipelines.errors import LoaderError
from numbered_dataset import Numbered, refuse_shared_memory

if __name__ == "__main__":
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


def test_a_lack_of_shared_memory_and_of_descriptors_is_named(tmp_path: Path) -> None:
    done = run_script(NARROW, tmp_path)
    assert done.returncode == 0, done.stderr
    shared_memory, receiving, starting = done.stdout.splitlines()
    assert shared_memory.startswith("E-SHM")
    assert "unable to" in shared_memory
    assert receiving.startswith("E-FD keep fewer batches")
    assert starting.startswith("E-FD open files: need=")


def test_torchs_timeout_is_torchs() -> None:
    with DataLoader(Numbered(4, {0: "sleep"}), num_workers=1, timeout=0.5) as loader:
        with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.5 seconds") as caught:
            next(iter(loader))
        assert type(caught.value) is RuntimeError


def census() -> tuple[int, int, int]:
    """Processes, threads and descriptors of this process, once those that are about to go have gone."""
    counts: list[tuple[int, int, int]] = []
    while len(counts) < 3 or len(set(counts[-3:])) > 1:
        gc.collect()
        counts.append((len(children()), threading.active_count(), len(os.listdir("/proc/self/fd"))))
        time.sleep(0.02)
    return counts[-1]


def test_leaving_an_epoch_leaks_nothing() -> None:
    def leave_early(loader: DataLoader[Any], times: int) -> None:
        for _ in range(times):
            for _ in zip(loader, range(3), strict=False):
                pass

    with DataLoader(Numbered(1000), 2, num_workers=1) as loader:
        leave_early(loader, 2)
        before = census()
        leave_early(loader, 50)
        after = census()
        assert after[:2] == before[:2]
        assert after[2] <= before[2] + 4  # a batch that waits in a queue holds descriptors; a leak would be 50
        assert loader.epoch == 51
    closed = census()
    assert closed[0] == before[0] - 1
    leave_early(DataLoader(Numbered(1000), 2, num_workers=1, persistent_workers=False), 3)
    assert census() == closed


def test_a_loader_that_is_forgotten_ends_its_workers_at_once() -> None:
    loader = DataLoader(Numbered(1000), 2, num_workers=1)
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
    """Let torch believe in an accelerator, whose pinned memory is what `pin` returns."""
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
        # Leaving and closing while batches are under way: the thread ends before those who send to it.
        loader.set_epoch(1)
        next(iter(loader))
        with pytest.raises(LoaderError) as caught:
            list(loader)
        assert caught.value.sample == 30
    del caught, loader
    assert census() == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_pinning_thread_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def pin(data: Any, device: Any) -> Any:
        if isinstance(data, torch.Tensor) and 4 in data.tolist():
            raise SystemExit  # ends the thread without a word
        return data if data is None else ("pinned", data.tolist())

    fake_accelerator(monkeypatch, pin)
    with DataLoader(Numbered(8), 2, num_workers=1, pin_memory=True) as loader:
        batches = iter(loader)
        assert [next(batches), next(batches)] == [("pinned", [0, 1]), ("pinned", [2, 3])]
        with pytest.raises(LoaderError, match="the thread that pins memory ended") as caught:
            next(batches)
    assert caught.value.code == "E-WORKER"


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_worker_killed_while_it_writes_to_the_pinning_thread_hangs_nobody(
    num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_accelerator(monkeypatch, lambda data, device: data)
    loader = DataLoader(Large(8), 1, num_workers=num_workers, collate_fn=as_list, watchdog_s=100, pin_memory=True)
    with loader:
        batches = iter(loader)
        next(batches)
        time.sleep(0.2)
        for worker in loader._iterator._workers:  # type: ignore[union-attr]
            os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(LoaderError) as caught:
            list(batches)
        assert caught.value.code == "E-WORKER"


# start methods


def test_what_a_clean_process_cannot_be_handed_is_forked_with_a_warning() -> None:
    with DataLoader(Unpicklable(4), 2, num_workers=1) as loader:
        with pytest.warns(RuntimeWarning, match=r"forks its workers, because .* does not pickle .*lock") as caught:
            assert values(loader) == [[0, 1], [2, 3]]
        assert values(loader) == [[0, 1], [2, 3]]
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert loader.multiprocessing_context.get_start_method() == "fork"


def test_reasons_against_a_clean_process(monkeypatch: pytest.MonkeyPatch) -> None:
    before = census()
    context = torch.multiprocessing.get_context("forkserver")
    assert why_not_started_clean(2, Numbered(4), context.Lock(), context.Queue(), torch.ones(100), as_list) is None
    assert "does not pickle" in str(why_not_started_clean(2, lambda: None))
    assert "300 tensors" in str(why_not_started_clean(2, [torch.ones(1) for _ in range(300)]))
    monkeypatch.setattr(worker_start, "memory_headroom", lambda: 1 << 20)
    assert why_not_started_clean(2, np.zeros(100_000, np.uint8)) is None
    assert "free memory" in str(why_not_started_clean(2, np.zeros(200_000, np.uint8)))
    assert why_not_started_clean(1, np.zeros(200_000, np.uint8)) is None
    del context
    assert census() == before
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.setattr(main, "__file__", "<stdin>", raising=False)
    assert "no file that a worker could import" in str(why_not_started_clean(1, Numbered(4)))
    monkeypatch.delattr(main, "__file__")
    assert why_not_started_clean(1, Numbered(4)) is None
    monkeypatch.setattr(Numbered, "__module__", "__main__")
    monkeypatch.setattr(main, "Numbered", Numbered, raising=False)
    assert "no file that a worker could import" in str(why_not_started_clean(1, Numbered(4)))


def test_a_start_method_that_the_program_chose_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_start.multiprocessing, "get_start_method", lambda allow_none: "spawn")
    assert choose_context(1, lambda: None).get_start_method() == "spawn"
    explicit = DataLoader(Numbered(4), num_workers=1, multiprocessing_context="fork")
    with explicit:
        assert values(explicit) == [[0], [1], [2], [3]]
        assert explicit.multiprocessing_context.get_start_method() == "fork"


SCRIPT = """
import os, sys
from penstock.loaders.drop_in.data_loader import DataLoader

class Squares:
    def __len__(self): return 4
    def __getitem__(self, index): return index * index

{guard}
    loader = DataLoader(Squares(), 2, num_workers=1)
    print([batch.tolist() for batch in loader])
"""
GUARD = 'if __name__ == "__main__":'


def run_script(text: str, folder: Path | None) -> subprocess.CompletedProcess[str]:
    """Run a script from a file in `folder`, or from standard input."""
    name = "-"
    if folder is not None:
        name = str(folder / "script.py")
        Path(name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "support" / "processes")}
    return subprocess.run(
        [sys.executable, name],
        check=False,
        input=text,
        capture_output=True,
        text=True,
        timeout=100,
        env=environment,
        start_new_session=True,
    )


def test_a_script_without_a_main_guard_is_told_what_to_write(tmp_path: Path) -> None:
    done = run_script(SCRIPT.format(guard="if True:"), tmp_path)
    assert done.returncode == 1
    assert "LoaderError[E-MISUSE]" in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "LoaderError[E-WORKER]" in last
    assert "exited with 1 while it was being started" in last
    assert done.stderr.count(f"under `{GUARD}`") >= 2
    mended = run_script(SCRIPT.format(guard=GUARD), tmp_path)
    assert (mended.returncode, mended.stdout) == (0, "[[0, 1], [4, 9]]\n")
    assert "Warning" not in mended.stderr


def test_a_script_that_no_worker_can_import_is_forked() -> None:
    done = run_script(SCRIPT.format(guard="if True:"), None)
    assert (done.returncode, done.stdout) == (0, "[[0, 1], [4, 9]]\n")
    assert "the main script has no file that a worker could import" in done.stderr


def test_workers_die_with_a_parent_that_a_signal_to_all_of_them_ends(tmp_path: Path) -> None:
    loop = "for _ in loader: print(loader._iterator._workers[0].pid, flush=True); os.killpg(0, 15)"
    done = run_script(SCRIPT.format(guard=GUARD).replace("print([batch.tolist() for batch in loader])", loop), tmp_path)
    assert done.returncode == -signal.SIGTERM
    worker = int(done.stdout)
    deadline = time.monotonic() + 20
    while psutil.pid_exists(worker) and psutil.Process(worker).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the worker outlives its parent"
        time.sleep(0.05)


# iterable datasets, devices, statistics


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterable_dataset_is_torchs_and_keeps_its_own_place(num_workers: int) -> None:
    theirs = values(TorchDataLoader(Stream(10), 2, num_workers=num_workers))
    with DataLoader(Stream(10), 2, num_workers=num_workers) as loader:
        assert values(loader) == theirs
        next(iter(loader))
        assert values(loader) == theirs
        for ask in (loader.state_dict, lambda: loader.load_state_dict({}), lambda: loader.set_epoch(1)):
            with pytest.raises(LoaderError, match="not available for an IterableDataset") as caught:
                ask()
            assert caught.value.code == "E-MISUSE"


def as_pair(samples: list[int]) -> Pair:
    return Pair(torch.tensor(samples), {"labels": torch.tensor(samples)})


def test_batches_go_to_the_device() -> None:
    with DataLoader(Numbered(5), 2, num_workers=0, collate_fn=as_pair, device="meta", drop_last=True) as loader:
        batches = list(loader)
    assert [type(batch) for batch in batches] == [Pair, Pair]
    assert all(batch.images.is_meta and batch.labels["labels"].is_meta for batch in batches)
    assert loader.stats().batches == 2
    cpu = DataLoader(Numbered(5), 2, num_workers=0, device="cpu")
    assert values(cpu) == [[0, 1], [2, 3], [4]]
    cpu.load_state_dict({**cpu.state_dict(), "batches": 2})
    assert values(cpu) == [[4]]


def test_statistics_count_what_was_delivered() -> None:
    # Worker 0 is late with the first batch: by then the others lie finished.
    with DataLoader(Numbered(9, {0: "wait"}), 2, num_workers=2, prefetch_factor=2) as loader:
        assert loader.stats().batches == loader.stats().images == 0
        batches = iter(loader)
        next(batches)
        time.sleep(0.3)
        list(batches)
        stats = loader.stats()
    assert (stats.batches, stats.images, stats.produce_s) == (5, 9, 0.0)
    assert 0 < stats.wait_s <= stats.elapsed_s
    assert stats.images_per_s > 0
    assert 1 <= stats.queue_depth <= 4
    scalar = DataLoader(Numbered(3), None, num_workers=0, collate_fn=torch.tensor)
    list(scalar)
    assert scalar.stats().images == 3
    text = DataLoader(Numbered(3), None, num_workers=0)
    list(text)
    assert (text.stats().batches, text.stats().images) == (3, 0)


def test_a_subset_fetched_by_whole_batches_is_served() -> None:
    subset = Subset(Numbered(20, {13: "SIGKILL"}), [11, 12, 13, 14])
    with DataLoader(subset, 2, num_workers=1, collate_fn=as_list) as loader, pytest.raises(LoaderError) as caught:
        list(loader)
    assert caught.value.sample == 2
    assert "samples [2, 3] in hand" in caught.value.cause
