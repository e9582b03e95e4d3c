"""Data sets, samplers and iterators that keep their own place are saved with the DataLoader's, and sent back."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from drop_in_streams import values
from torch.utils.data import BatchSampler, Dataset, IterableDataset, Sampler, get_worker_info

from penstock.loaders.drop_in.data_loader import DataLoader
from penstock.pipelines.errors import LoaderError

# torch is loaded, and has threads, wherever these tests fork on purpose
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
State = dict[str, Any]
LENGTH = 13


def share() -> tuple[int, int]:
    info = get_worker_info()
    return (info.id, info.num_workers) if info else (0, 1)


class Generated(IterableDataset[int]):
    """Keeps the place in itself; its iterator is a generator. Counts its epochs: they are served in other orders."""

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
    """Its iterator keeps the place."""

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
    """Keeps no place: it is read again. Its order is drawn from Python's generator, which torch seeds in a worker."""

    def __iter__(self) -> Iterator[float]:
        first, step = share()
        samples = list(range(first, LENGTH, step))
        random.shuffle(samples)
        yield from samples


class Counting(Dataset[tuple[int, int]]):
    """A map-style data set with a state: how many samples this process has made."""

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


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index


class KeepsPlace(Sampler[int]):
    """A sampler with a state, whose order no resumed one could draw again."""

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
    """A sampler whose iterator keeps the place."""

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
    "sampler": lambda: {"dataset": Numbers(), "batch_size": 2, "sampler": KeepsPlace()},
    "batch sampler": lambda: {"dataset": Numbers(), "batch_sampler": BatchSampler(KeepsPlace(), 3, True)},
    "sampler's iterator": lambda: {"dataset": Numbers(), "batch_size": None, "sampler": Iterated()},
}


def seen(batch: Any) -> Any:
    return [part.tolist() for part in batch] if isinstance(batch, list) else torch.as_tensor(batch).tolist()


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("source", SOURCES)
def test_the_rest_of_two_epochs_is_that_of_a_run_that_was_not_stopped(
    source: str, num_workers: int, persistent: bool
) -> None:
    def loader() -> DataLoader[Any]:
        torch.manual_seed(5)
        random.seed(5)
        return DataLoader(**SOURCES[source](), num_workers=num_workers, persistent_workers=persistent)

    # One run whose state is taken at each boundary, and what it served after that.
    KeepsPlace.passes = 0
    served: list[Any] = []
    states: list[tuple[int, int, str]] = []
    with loader() as whole:
        for _ in range(2):
            states.append((len(served), KeepsPlace.passes, json.dumps(whole.state_dict())))
            for batch in whole:
                served.append(seen(batch))
                states.append((len(served), KeepsPlace.passes, json.dumps(whole.state_dict())))
        states.append((len(served), KeepsPlace.passes, json.dumps(whole.state_dict())))
        assert whole.epoch == 2
    for taken, passes, state in states[:: 1 if num_workers == 0 else 3]:
        KeepsPlace.passes = passes
        with loader() as again:
            again.load_state_dict(json.loads(state))
            rest = []
            while again.epoch < 2:
                rest += [seen(batch) for batch in again]
        assert rest == served[taken:], f"after {taken} batches"


def test_a_data_set_with_a_state_is_not_read_again() -> None:
    first = DataLoader(Generated(), 2)
    batches = iter(first)
    [next(batches) for _ in range(4)]
    dataset = Generated()
    again = DataLoader(dataset, 2)
    again.load_state_dict(first.state_dict())
    assert len(values(again)) == 3
    assert dataset.reads == LENGTH - 8


def test_a_state_of_other_processes_or_without_a_taker_is_refused() -> None:
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


def test_a_state_is_what_it_was_when_it_was_taken() -> None:
    class Growing(Generated):
        def state_dict(self) -> State:
            return self.__dict__  # as it stands, to be changed later

    loader = DataLoader(Growing(), 2)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    before = json.dumps(state)
    next(batches)
    assert json.dumps(state) == before


class Secretive(Dataset[int]):
    """A data set that gives no state."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return index

    def state_dict(self) -> State:
        raise KeyError("later")

    def load_state_dict(self, state: State) -> None:
        """Take it."""


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_that_a_data_set_does_not_give_is_missed_when_it_is_asked_for(num_workers: int) -> None:
    with DataLoader(Secretive(), 2, num_workers=num_workers) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1]
        with pytest.raises(LoaderError, match=r"E-STATE.*the dataset has no state .*KeyError: 'later'"):
            loader.state_dict()
        assert len(list(batches)) == 2
