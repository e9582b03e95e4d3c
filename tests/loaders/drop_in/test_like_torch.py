"""The drop-in DataLoader serves what torch's does, at the same time, however subclasses and programs use it."""

from __future__ import annotations

import copy
import pickle
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drop_in_streams import run_script, seeded, values
from numbered_dataset import Numbered, Stream, as_list
from processes import eventually
from torch.utils.data import BatchSampler, Dataset, IterableDataset, RandomSampler, WeightedRandomSampler, dataloader
from torch.utils.data import DataLoader as TorchDataLoader

from penstock.loaders.drop_in.data_loader import DataLoader
from penstock.pipelines.errors import LoaderError

LENGTH = 11
Kind = Callable[..., Any]


class Everything(IterableDataset[int]):
    """Serves all of its samples in every worker, like a data set written without workers in mind."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class Scaled(Dataset[int]):
    """A map-style data set that the program changes between epochs."""

    def __init__(self) -> None:
        self.factor = 1

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index * self.factor

    def set_epoch(self, epoch: int) -> None:
        self.factor = epoch + 1


class Drawing(Numbered):
    """Samples that draw from the generators of Python, NumPy and torch, as random transforms do."""

    def __getitem__(self, index: int) -> Any:
        return index, random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002


def both(run: Callable[[Kind], Any]) -> tuple[Any, Any]:
    """Return the results of `run` with torch's DataLoader and with ours, each from the same torch seed."""
    found = []
    for kind in (TorchDataLoader, DataLoader):
        torch.manual_seed(11)
        found.append((run(kind), int(torch.randint(1 << 30, ()))))
    return found[0], found[1]


# Each takes a loader class and returns what was seen.
def three_epochs_by_workers(kind: Kind) -> Any:
    loader = kind(Drawing(LENGTH), 2, shuffle=True, num_workers=2, collate_fn=as_list)
    return [list(loader) for _ in range(2)]


def persistent_epochs(kind: Kind) -> Any:
    loader = kind(Drawing(LENGTH), 2, shuffle=True, num_workers=2, collate_fn=as_list, persistent_workers=True)
    return [list(loader) for _ in range(3)]


def one_loader_twice(kind: Kind) -> Any:
    loader = kind(Numbered(LENGTH), 2, shuffle=True)
    pairs = [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)]
    return pairs, [(a.tolist(), b.tolist()) for a in loader for b in loader]


def an_iterable_dataset(kind: Kind) -> Any:
    loaders = [kind(dataset, 2, num_workers=workers) for dataset in (Everything(7), Stream(10)) for workers in (0, 2)]
    whole = [values(loader) for loader in loaders]
    left_early = [next(iter(loader)).tolist() for loader in loaders]
    return whole, left_early, [values(loader) for loader in loaders], values(kind(Everything(7)))


def changes_between_epochs(kind: Kind) -> Any:
    dataset = Scaled()
    loader, seen = kind(dataset, 2, num_workers=1), []
    for epoch in range(3):
        dataset.set_epoch(epoch)
        seen.append(values(loader))
    return seen


def samplers_with_generators(kind: Kind) -> Any:
    generator = seeded()
    loaders = [
        kind(Numbered(LENGTH), 2, shuffle=True, generator=generator),
        kind(Numbered(LENGTH), 2, sampler=RandomSampler(range(LENGTH), replacement=True, generator=seeded())),
        kind(Numbered(LENGTH), 2, sampler=WeightedRandomSampler([1.0] * LENGTH, 9)),
        kind(Numbered(LENGTH), None, sampler=RandomSampler(range(LENGTH))),
        kind(Numbered(LENGTH), batch_sampler=EagerBatches(), num_workers=1),
        kind(Numbered(LENGTH), batch_sampler=EagerBatches()),
    ]
    return [values(loader) for _ in range(2) for loader in loaders], generator.initial_seed()


class EagerBatches:
    """A batch sampler that draws in __iter__, not in the iterator's first __next__."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter(torch.randperm(LENGTH)[:8].view(4, 2).tolist())

    def __len__(self) -> int:
        return 4


def keys_of_other_kinds(kind: Kind) -> Any:
    """Keys that are not numbers, or numbers beyond 64 bits."""
    settings = {"num_workers": 1, "collate_fn": as_list}
    far = {key: str(key) for key in (1 << 63, -(1 << 70), "name", 3)}
    return list(kind(far, 2, sampler=list(far), **settings)), list(kind(far, None, sampler=list(far), num_workers=1))


class OneIterator:
    """A loader with one endless iteration for all epochs, over a batch sampler that is Repeated."""

    batch_sampler: Any
    iterator: Any = None

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)

    def __iter__(self) -> Iterator[Any]:
        if self.iterator is None:
            self.iterator = self._get_iterator()  # type: ignore[attr-defined]
        for _ in range(len(self)):
            yield next(self.iterator)


class InfiniteDataLoader:
    """How YOLOv5 and Ultralytics keep workers: the batch sampler is swapped for an endless one."""

    @staticmethod
    def of(kind: Any) -> Any:
        class Infinite(OneIterator, kind):  # type: ignore[misc]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))

        return Infinite


class Repeated:
    """A sampler that starts again when it ends."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


def yolos_infinite_loader(kind: Kind) -> Any:
    found = []
    for settings in ({"num_workers": 0}, {"num_workers": 1}):
        loader = InfiniteDataLoader.of(kind)(Numbered(LENGTH), 2, shuffle=True, **settings)
        for _ in range(3):
            found += [values(loader) for _ in range(2)]
            loader.iterator = None  # its reset()
    return found


def copies(kind: Kind) -> Any:
    loader = kind(Numbered(LENGTH), 2, shuffle=True, generator=seeded(), num_workers=1)
    return [values(other) for other in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader)), loader)]


def an_end_that_is_not_requested(kind: Kind) -> Any:
    loader, found = kind(Numbered(LENGTH - 1), 2, shuffle=True, generator=seeded()), []
    for _ in range(3):
        found += [(batch.tolist(), float(torch.rand(()))) for _, batch in zip(range(len(loader)), loader, strict=False)]
    return found


def draws_beside_an_endless_loader(kind: Kind) -> Any:
    loader = InfiniteDataLoader.of(kind)(Numbered(LENGTH), 2, shuffle=True)
    return [(batch.tolist(), float(torch.rand(()))) for _ in range(3) for batch in loader]


class Ending:
    """A sampler that calls `act` after its last index."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def __iter__(self) -> Iterator[int]:
        yield from range(4)
        self.act()

    def __len__(self) -> int:
        return 4


def samplers_with_an_end(kind: Kind) -> Any:
    found: list[Any] = []
    acts: list[Callable[[], object]] = [lambda: found.append("end"), lambda: torch.rand(()), lambda: 1 // 0]
    for act in acts:
        try:
            for batch in kind(Numbered(LENGTH), 2, sampler=Ending(act)):
                found += [batch.tolist(), float(torch.rand(()))]
        except ZeroDivisionError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize(
    "run",
    [
        an_end_that_is_not_requested,
        draws_beside_an_endless_loader,
        samplers_with_an_end,
        three_epochs_by_workers,
        persistent_epochs,
        one_loader_twice,
        an_iterable_dataset,
        changes_between_epochs,
        samplers_with_generators,
        keys_of_other_kinds,
        yolos_infinite_loader,
        copies,
    ],
)
def test_everything_that_is_served_equals_torchs(run: Callable[[Kind], Any]) -> None:
    theirs, ours = both(run)
    assert ours == theirs


def test_the_comparison_with_torch_can_fail() -> None:
    theirs, ours = both(lambda kind: values(kind(Numbered(LENGTH), 2, shuffle=True, **seeds(kind))))
    assert ours != theirs


def seeds(kind: Kind) -> dict[str, Any]:
    return {"seed": 3} if kind is DataLoader else {}


def test_a_loader_that_was_used_is_copied_without_its_workers() -> None:
    with DataLoader(Numbered(LENGTH), 2, seed=1, shuffle=True, num_workers=1, persistent_workers=True) as loader:
        next(iter(loader))
        again = pickle.loads(pickle.dumps(loader))
        with again, copy.deepcopy(loader) as third:
            assert again.epoch == third.epoch == 0
            assert values(again) == values(third) == values(loader)


class Writes(Numbered):
    """Writes files slowly, as a data set that caches its results does."""

    def __init__(self, folder: Path) -> None:
        super().__init__(4)
        self.folder = folder

    def __getitem__(self, index: int) -> int:
        path = self.folder / str(index)
        with path.open("w") as file:
            for _ in range(12):
                file.write("x")
                file.flush()
                time.sleep(0.1)
        return index


class WritesAtItsEnd(IterableDataset[int]):
    """The first worker serves one sample and ends; the second is then in the middle of a file."""

    def __init__(self, folder: Path) -> None:
        self.inner = Writes(folder)

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        yield info.id
        if info.id:
            yield self.inner[0]


@pytest.mark.parametrize("kind", [Writes, WritesAtItsEnd])
def test_a_worker_that_is_busy_at_the_end_may_finish_its_sample(kind: Callable[[Path], Any], tmp_path: Path) -> None:
    loader = DataLoader(kind(tmp_path), None, num_workers=2)
    batches = iter(loader)
    if kind is WritesAtItsEnd:
        assert sorted([next(batches), next(batches)]) == [0, 1]
    assert eventually(lambda: bool(list(tmp_path.iterdir())), 60)
    loader.close()
    assert {path.stat().st_size for path in tmp_path.iterdir()} == {12}


class SlowStart(Numbered):
    """Takes longer to reach a worker than its samples may take."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        time.sleep(3)
        self.__dict__.update(state)


def test_the_timeout_of_a_batch_excludes_the_start_of_the_workers() -> None:
    loader = DataLoader(SlowStart(4), 2, num_workers=1, timeout=2, multiprocessing_context="forkserver")
    with loader:
        assert values(loader) == [[0, 1], [2, 3]]


class Refuses(Numbered):
    """A data set that raises LoaderError itself."""

    def __getitem__(self, index: int) -> int:
        raise LoaderError("E-CORRUPT", "Huffman: table", sample=index, path=b"it's \xff.jpg", fix="none: fix=it")


def test_a_loader_error_from_a_worker_keeps_its_type() -> None:
    with DataLoader(Refuses(4), 2, num_workers=1) as loader, pytest.raises(LoaderError) as caught:
        list(loader)
    error = caught.value
    assert (error.code, error.sample, error.exit_code) == ("E-CORRUPT", 0, 3)
    assert error.path == "it's \udcff.jpg"
    assert "Huffman: table" in error.cause


SCRIPT = """
import torch
from penstock.loaders import DataLoader
from torch.utils.data import TensorDataset

class Plus:
    def __len__(self): return 4
    def __getitem__(self, index): return index + OFFSET

OFFSET = 0
if True:
    OFFSET = 7
    class Under(Plus): pass
    print([batch[0].tolist() for batch in DataLoader(TensorDataset(torch.arange(4)), 2)])
    print([batch.tolist() for batch in DataLoader(Under(), 2, num_workers=1)])
"""
EXPECTED = "[[0, 1], [2, 3]]\n[[7, 8], [9, 10]]\n"


def test_a_script_needs_no_main_guard_and_workers_have_its_globals(tmp_path: Path) -> None:
    done = run_script(SCRIPT, tmp_path, "-m", "pdb", "-c", "c")
    assert EXPECTED in done.stdout, done.stderr
    assert done.stderr == ""


def test_iterators_of_torch_keep_their_workers() -> None:
    loader = DataLoader(Numbered(4), 2, num_workers=2)
    batches: Any = iter(loader)
    assert [worker.is_alive() for worker in batches._workers] == [True, True]
    assert isinstance(batches, dataloader._MultiProcessingDataLoaderIter)
    del loader  # the iterator continues alone
    assert values(batches) == [[0, 1], [2, 3]]
    assert isinstance(iter(DataLoader(Numbered(4))), dataloader._SingleProcessDataLoaderIter)


def test_a_seeded_batch_sampler_begins_a_new_epoch_each_time() -> None:
    # Trainers take the batch sampler out of the loader and put it into their own loader.
    loader = DataLoader(Numbered(LENGTH), 2, shuffle=True, seed=5)
    theirs = TorchDataLoader(Numbered(LENGTH), batch_sampler=loader.batch_sampler)
    epochs = [values(theirs) for _ in range(3)]
    assert epochs == [values(loader) for _ in range(3)]
    assert len({str(epoch) for epoch in epochs}) == 3
    assert isinstance(loader.batch_sampler, BatchSampler)
