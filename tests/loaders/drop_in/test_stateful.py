"""States of data sets, samplers and iterators are saved with the DataLoader's state and restored."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from drop_in_streams import serve_rest, serve_with_states, values
from numbered_dataset import Numbered
from torch.utils.data import BatchSampler, Dataset, IterableDataset, Sampler, get_worker_info

from penstock.loaders.drop_in.data_loader import DataLoader
from penstock.pipelines.errors import LoaderError

State = dict[str, Any]
LENGTH = 13


def share() -> tuple[int, int]:
    info = get_worker_info()
    return (info.id, info.num_workers) if info else (0, 1)


class Generated(IterableDataset[int]):
    """Stores its position itself; its iterator is a generator. Counts its epochs, which have different orders."""

    def __init__(self) -> None:
        self.served, self.epochs, self.reads = 0, 0, 0

    def __iter__(self) -> Iterator[int]:
        first, step = share()
        samples = list(range(first, LENGTH - 4 * first, step))
        random.Random(self.epochs).shuffle(samples)
        for sample in samples[self.served :]:
            self.served += 1
            self.reads += 1
            yield sample + 1000 * self.epochs
        self.served, self.epochs = 0, self.epochs + 1

    def state_dict(self) -> State:
        return {"served": self.served, "epochs": self.epochs}

    def load_state_dict(self, state: State) -> None:
        self.served, self.epochs = state["served"], state["epochs"]


class Walking(IterableDataset[int]):
    """Its iterator stores the position."""

    def __iter__(self) -> Iterator[int]:
        return Walk(*share())


class Walk(Iterator[int]):
    def __init__(self, first: int, step: int) -> None:
        self.next, self.step = first, step

    def __next__(self) -> int:
        if self.next >= LENGTH:
            raise StopIteration
        self.next += self.step
        return self.next - self.step

    def state_dict(self) -> State:
        return {"next": self.next}

    def load_state_dict(self, state: State) -> None:
        self.next = state["next"]


class Plain(IterableDataset[float]):
    """Stores no position: it is read again. Its order comes from Python's generator, which torch seeds in a worker."""

    def __iter__(self) -> Iterator[float]:
        first, step = share()
        samples = list(range(first, LENGTH, step))
        random.shuffle(samples)
        yield from samples


class Counting(Dataset[tuple[int, int]]):
    """A map-style data set with a state: the number of samples that this process has made."""

    def __init__(self) -> None:
        self.made = 0

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.made += 1
        return index, self.made

    def state_dict(self) -> State:
        return {"made": self.made}

    def load_state_dict(self, state: State) -> None:
        self.made = state["made"]


class KeepsPlace(Sampler[int]):
    """A sampler with a state; a resumed one could not draw its order again."""

    passes = 0

    def __init__(self) -> None:
        self.order: list[int] = []
        self.served = 0

    def __iter__(self) -> Iterator[int]:
        if not self.order:
            KeepsPlace.passes += 1
            self.order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(KeepsPlace.passes)).tolist()
        while self.served < LENGTH:
            self.served += 1
            yield self.order[self.served - 1]
        self.order, self.served = [], 0

    def __len__(self) -> int:
        return LENGTH

    def state_dict(self) -> State:
        return {"order": self.order, "served": self.served}

    def load_state_dict(self, state: State) -> None:
        self.order, self.served = list(state["order"]), state["served"]


class Iterated:
    """A sampler whose iterator stores the position."""

    def __iter__(self) -> Iterator[int]:
        return Walk(0, 1)

    def __len__(self) -> int:
        return LENGTH


SOURCES: dict[str, Callable[[], dict[str, Any]]] = {
    "generator": lambda: {"dataset": Generated(), "batch_size": 2},
    "iterator": lambda: {"dataset": Walking(), "batch_size": 2},
    "read again": lambda: {"dataset": Plain(), "batch_size": 2},
    "unbatched": lambda: {"dataset": Walking(), "batch_size": None},
    "map-style": lambda: {"dataset": Counting(), "batch_size": 2},
    "sampler": lambda: {"dataset": Numbered(LENGTH), "batch_size": 2, "sampler": KeepsPlace()},
    "batch sampler": lambda: {"dataset": Numbered(LENGTH), "batch_sampler": BatchSampler(KeepsPlace(), 3, True)},
    "sampler's iterator": lambda: {"dataset": Numbered(LENGTH), "batch_size": None, "sampler": Iterated()},
}


@pytest.mark.parametrize(
    ("source", "num_workers", "persistent"),
    [(source, workers, False) for source in SOURCES for workers in (0, 2)]
    + [(source, 2, True) for source in ("generator", "read again", "unbatched", "map-style", "sampler")],
)
def test_a_resumed_run_serves_the_rest_of_an_unstopped_one(source: str, num_workers: int, persistent: bool) -> None:
    def loader() -> DataLoader[Any]:
        torch.manual_seed(5)
        random.seed(5)
        return DataLoader(**SOURCES[source](), num_workers=num_workers, persistent_workers=persistent)

    KeepsPlace.passes = 0
    with loader() as whole:
        served, states = serve_with_states(whole, 2, lambda: KeepsPlace.passes)
        assert whole.epoch == 2
    for taken, state, passes in states if num_workers == 0 else states[len(states) // 4 :: len(states) // 4]:
        KeepsPlace.passes = passes or 0
        with loader() as again:
            again.load_state_dict(json.loads(state))
            assert serve_rest(again, 2) == served[taken:], f"after {taken} batches"


@pytest.mark.parametrize("sampler", [KeepsPlace, Iterated])
def test_batches_that_arrive_out_of_order_are_served_once_over_two_resumes(sampler: Callable[[], Any]) -> None:
    KeepsPlace.passes = 0
    late = list(sampler())[2]
    KeepsPlace.passes = 0

    def loader() -> DataLoader[Any]:
        return DataLoader(Numbered(LENGTH, {late: "wait"}), None, sampler=sampler(), num_workers=2, in_order=False)

    served: list[int] = []
    state = None
    for number in (5, 2, LENGTH - 7):
        with loader() as again:
            if state is not None:
                assert state["details"]["ahead"]
                again.load_state_dict(state)
            batches = iter(again)
            served += [int(next(batches)) for _ in range(number)]
            state = json.loads(json.dumps(again.state_dict()))
    assert sorted(served) == list(range(LENGTH))


@pytest.mark.parametrize("delivered", [1, 3])
def test_persistent_workers_are_resumed_after_an_epoch_left_early(delivered: int) -> None:
    def loader(seed: int) -> DataLoader[Any]:
        torch.manual_seed(seed)
        return DataLoader(Plain(), 2, num_workers=2, persistent_workers=True)

    with loader(1) as first:
        next(iter(first))  # the generators of the workers continue from there
        batches = iter(first)
        for _ in range(delivered):
            next(batches)
        state = json.loads(json.dumps(first.state_dict()))
        rest = values(batches)
    with loader(2) as again:
        again.load_state_dict(state)
        assert values(again) == rest


def test_a_data_set_with_a_state_is_not_read_again() -> None:
    first = DataLoader(Generated(), 2)
    batches = iter(first)
    [next(batches) for _ in range(4)]
    dataset = Generated()
    again = DataLoader(dataset, 2)
    again.load_state_dict(first.state_dict())
    assert len(values(again)) == 3
    assert dataset.reads == LENGTH - 8


def test_a_state_of_other_processes_or_without_a_receiver_is_refused() -> None:
    with DataLoader(Walking(), 2, num_workers=2) as loader:
        next(iter(loader))
        state = loader.state_dict()
    for workers in (0, 1):
        with pytest.raises(LoaderError, match="num_workers") as caught:
            DataLoader(Walking(), 2, num_workers=workers).load_state_dict(state)
        assert caught.value.code == "E-STATE"
    with DataLoader(Plain(), 2, num_workers=2) as other:
        other.load_state_dict(state)
        with pytest.raises(LoaderError, match="no load_state_dict"):
            list(other)


def test_a_state_does_not_change_after_it_is_returned() -> None:
    class Growing(Generated):
        def state_dict(self) -> State:
            return self.__dict__  # not a copy, so it changes later

    loader = DataLoader(Growing(), 2)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    before = json.dumps(state)
    next(batches)
    assert json.dumps(state) == before


class OwnState(Numbered):
    """Its states are not torchdata's: they need an argument."""

    def state_dict(self, step: int) -> State:
        return {"step": step}

    def load_state_dict(self, state: State) -> None:
        """Accept any state."""


class NoState(OwnState):
    """Returns its state at certain times only."""

    def state_dict(self) -> State:  # type: ignore[override]
        raise KeyError("later")


class FixedState(OwnState):
    """Its state cannot be copied."""

    def state_dict(self) -> Any:  # type: ignore[override]
        return (k for k in range(3))


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("dataset", "why"), [(OwnState(LENGTH), ""), (NoState(LENGTH), "KeyError: 'later'"), (FixedState(LENGTH), "pickle")]
)
def test_a_failing_state_dict_is_reported_when_asked_for(dataset: Any, why: str, num_workers: int) -> None:
    with DataLoader(dataset, 2, num_workers=num_workers) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1]
        expected = pytest.raises(LoaderError, match=f"E-STATE.*state of the dataset cannot be copied .*{why}")
        with expected if why else nullcontext():
            loader.state_dict()
        assert values(batches) == [[2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12]]


class Answers(Dataset[int]):
    """Draws a number per sample; its state contains the generator. The first sample of a worker may take long."""

    def __init__(self, before_first: Callable[[], Any] = int) -> None:
        self.before_first = before_first

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> int:
        if index == 0:
            self.before_first()
        return 1000 * index + int(torch.randint(1000, ()))

    def state_dict(self) -> State:
        return {"generator": torch.get_rng_state().tolist()}

    def load_state_dict(self, state: State) -> None:
        torch.set_rng_state(torch.tensor(state["generator"], dtype=torch.uint8))


class Drawn(Iterator[int]):
    """Iterates over random numbers, and saves the generator."""

    def __init__(self) -> None:
        self.served, self.last = 0, int(torch.randint(6, 9, ()))

    def __next__(self) -> int:
        if self.served == self.last:
            raise StopIteration
        self.served += 1
        return int(torch.randint(1000, ()))

    def state_dict(self) -> State:
        return {"served": self.served, "generator": torch.get_rng_state().tolist()}

    def load_state_dict(self, state: State) -> None:
        self.served = state["served"]
        torch.set_rng_state(torch.tensor(state["generator"], dtype=torch.uint8))


class Drawing(IterableDataset[int]):
    """Its iterator draws its length when it is created."""

    def __iter__(self) -> Iterator[int]:
        return Drawn()


class Itself(IterableDataset[int]):
    """Is its own iterator; it has a position once an iterator was requested."""

    walk: Drawn

    def __iter__(self) -> Iterator[int]:
        self.walk = Drawn()
        return self

    def __next__(self) -> int:
        return next(self.walk)

    def state_dict(self) -> State:
        return self.walk.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.walk.load_state_dict(state)


EARLY: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffled": lambda: {"dataset": Numbered(LENGTH), "shuffle": True},
    "a generator": lambda: {"dataset": Numbered(LENGTH), "shuffle": True, "generator": torch.Generator()},
    "shuffled, and draws": lambda: {"dataset": Answers(), "shuffle": True},
    "draws": lambda: {"dataset": Answers()},
    "sampler": lambda: {"dataset": Numbered(LENGTH), "sampler": KeepsPlace()},
    "its iterator draws": lambda: {"dataset": Drawing()},
    "its own iterator": lambda: {"dataset": Itself()},
}


@pytest.mark.parametrize(("delivered", "num_workers"), [(None, 0), (0, 0), (1, 0), (0, 2), (1, 2)])
@pytest.mark.parametrize("source", EARLY)
def test_a_state_from_before_the_first_batches_resumes(source: str, delivered: int | None, num_workers: int) -> None:
    def later(loader: DataLoader[Any]) -> list[Any]:
        """Return the next epoch, unless its workers draw from a generator that is not part of the state."""
        return values(loader) if num_workers == 0 or source.startswith("shuffled") else []

    torch.manual_seed(5)
    random.seed(5)
    KeepsPlace.passes = 0
    with DataLoader(**EARLY[source](), num_workers=num_workers, snapshot_every_n_steps=5) as first:
        batches = iter(first) if delivered is not None else None
        for _ in range(delivered or 0):
            next(batches)  # type: ignore[arg-type]
        state, passes = json.dumps(first.state_dict()), KeepsPlace.passes if delivered else 0
        rest = values(first if batches is None else batches) + later(first)
    torch.manual_seed(6)
    random.seed(6)
    KeepsPlace.passes = passes
    with DataLoader(**EARLY[source](), num_workers=num_workers) as again:
        again.load_state_dict(json.loads(state))
        assert json.dumps(again.state_dict()) == state
        assert values(again) + later(again) == rest


def test_a_signal_handler_may_ask_for_the_state() -> None:
    saved = multiprocessing.get_context("fork").Event()
    states: list[State] = []

    def save(*_: Any) -> None:
        states.append(loader.state_dict())
        saved.set()

    def before_first() -> None:
        time.sleep(0.3)  # the loader is waiting by then
        os.kill(os.getppid(), signal.SIGUSR1)
        assert saved.wait(20), "the handler waits for a lock of the program"

    before = signal.signal(signal.SIGUSR1, save)
    try:
        with DataLoader(Answers(before_first), num_workers=1, multiprocessing_context="fork") as loader:
            assert len(list(loader)) == 7
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [state["batches"] for state in states] == [0]
