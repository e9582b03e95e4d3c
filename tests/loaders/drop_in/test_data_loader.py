"""The drop-in DataLoader serves what torch's serves; torch's arguments behave alike, and a seed decides the order."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from drop_in_streams import children, seeded, values
from numbered_dataset import Numbered, Pair, Stream, as_list, mark
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data import DataLoader as TorchDataLoader

from penstock.loaders.drop_in.data_loader import DataLoader
from penstock.loaders.order.permutation import Permutation
from penstock.pipelines.errors import LoaderError

LENGTH, BATCH = 11, 2


# torch's arguments


def test_the_arguments_are_torchs_followed_by_ours() -> None:
    theirs = list(inspect.signature(TorchDataLoader).parameters.values())
    ours = list(inspect.signature(DataLoader).parameters.values())
    assert [(p.name, p.kind) for p in ours[: len(theirs)]] == [(p.name, p.kind) for p in theirs]
    assert {p.name for p in ours[len(theirs) :]} == {"device", "seed", "watchdog_s", "tuned", "snapshot_every_n_steps"}
    assert all(p.kind is p.KEYWORD_ONLY for p in ours[len(theirs) :])
    assert [mine.default for mine in ours[: len(theirs)]] == [other.default for other in theirs]


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
def test_batches_equal_torchs(arguments: Callable[[], dict[str, Any]]) -> None:
    theirs = TorchDataLoader(Numbered(LENGTH), **arguments())
    ours = DataLoader(Numbered(LENGTH), **arguments())
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
        {"sampler": [1], "shuffle": True},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_size": 0},
        {"dataset": Stream(3), "shuffle": True},
        {"num_workers": 1, "multiprocessing_context": "threads"},
        {"num_workers": 0, "multiprocessing_context": "fork"},
    ],
)
def test_impossible_arguments_raise_what_torch_raises(arguments: dict[str, Any]) -> None:
    caught_warnings = []
    for kind in (TorchDataLoader, DataLoader):
        with pytest.raises((ValueError, TypeError)) as caught:
            kind(**{"dataset": Numbered(4), **arguments})
        caught_warnings.append((caught.type, str(caught.value)))
    assert caught_warnings[0] == caught_warnings[1]


@pytest.mark.parametrize("settings", [{}, {"sampler": [1, 2]}, {"shuffle": True, "generator": seeded()}])
def test_a_seed_without_effect_warns(settings: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match="seed=3 has no effect") as caught_warnings:
        DataLoader(Numbered(4), seed=3, **settings)
    assert [warning.filename for warning in caught_warnings] == [__file__]


def test_nothing_starts_before_the_first_iteration() -> None:
    before = children()
    loader = DataLoader(Numbered(4), num_workers=1)
    assert children() == before
    assert (loader.persistent_workers, loader.prefetch_factor, loader.pin_memory) == (False, 2, False)


def test_too_many_workers_give_torchs_warning() -> None:
    with pytest.warns(UserWarning, match="This DataLoader will create 4000 worker processes"):
        DataLoader(Numbered(4), num_workers=4000)


# order


@pytest.mark.parametrize("length", [1, 2, 7, 5000])
def test_seed_and_epoch_decide_the_permutation(length: int) -> None:
    loader = DataLoader(Numbered(length), 3, shuffle=True, seed=9)
    epochs = [[k for batch in values(loader) for k in batch] for _ in range(2)]
    for epoch, order in enumerate(epochs):
        assert order == Permutation.of_epoch(length, 9, epoch)(np.arange(length)).tolist()
        assert sorted(order) == list(range(length))
    other = DataLoader(Numbered(length), 3, shuffle=True, seed=10)
    if length > 2:
        assert epochs[0] != epochs[1]
        assert [k for batch in values(other) for k in batch] != epochs[0]


def test_shuffling_by_a_seed_draws_nothing_from_torch() -> None:
    states = []
    for loader in (TorchDataLoader(Numbered(9), 2), DataLoader(Numbered(9), 2, shuffle=True, seed=0)):
        torch.manual_seed(1)
        list(loader)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_a_huge_dataset_can_be_read_at_any_position() -> None:
    length = 10**9
    for shuffle in (True, False):
        loader = DataLoader(Numbered(length), 10, shuffle=shuffle, seed=0 if shuffle else None)
        loader.load_state_dict({**loader.state_dict(), "batches": 70_000_000})
        batch = next(iter(loader)).tolist()
        positions = np.arange(700_000_000, 700_000_010)
        assert batch == (Permutation.of_epoch(length, 0, 0)(positions) if shuffle else positions).tolist()


def test_samplers_are_kept() -> None:
    sampler = RandomSampler(range(LENGTH), generator=seeded())
    loader = DataLoader(Numbered(LENGTH), sampler=sampler)
    assert loader.sampler is sampler
    batch_sampler = BatchSampler(sampler, 2, False)
    assert DataLoader(Numbered(LENGTH), batch_sampler=batch_sampler).batch_sampler is batch_sampler
    assert isinstance(DataLoader(Numbered(LENGTH)).sampler, SequentialSampler)


# iterators


def test_an_iterator_that_was_superseded_raises(pool: DataLoader[Any]) -> None:
    batches = iter(pool)
    next(batches)
    pool.set_epoch(50)
    with pytest.raises(LoaderError, match="another place") as caught:
        next(batches)
    assert caught.value.code == "E-MISUSE"
    for num_workers in (0, 1):
        loader = DataLoader(Numbered(4), num_workers=num_workers)
        older, batches = iter(loader), iter(loader)
        loader.close()
        loader.close()
        for iterator in (older, batches):
            with pytest.raises(LoaderError, match="closed"):
                next(iterator)
        with pytest.raises(LoaderError, match="closed"):
            iter(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_of_the_dataset_is_torchs_and_the_rest_is_served(num_workers: int) -> None:
    caught_warnings, rest = [], []
    for kind in (TorchDataLoader, DataLoader):
        loader: Any = kind(Numbered(8, {3: "raise"}), 2, num_workers=num_workers)
        batches = iter(loader)
        next(batches)
        with pytest.raises(KeyError) as caught:
            next(batches)
        caught_warnings.append(
            [line for line in str(caught.value).splitlines() if "File" not in line and "^" not in line][-1]
        )
        rest.append(values(batches))
    assert caught_warnings[0] == caught_warnings[1]
    assert "sample 3" in caught_warnings[1]
    assert rest[0] == rest[1] == [[4, 5], [6, 7]]
    loader.close()


def test_a_batch_that_cannot_be_sent_is_an_error_and_not_a_hang() -> None:
    with DataLoader(Numbered(8, {3: "unsendable"}), 2, num_workers=1, collate_fn=as_list, watchdog_s=60) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(TypeError, match=r"(?s)worker process 0, sending a batch.*cannot pickle .*lock"):
            next(batches)
        assert values(batches) == [[4, 5], [6, 7]]


def test_a_failed_batch_counts_once_the_next_is_served() -> None:
    dataset = Numbered(8, {3: "raise"})
    loader = DataLoader(dataset, 2)
    batches = iter(loader)
    next(batches)
    with pytest.raises(KeyError):
        next(batches)
    assert loader.state_dict()["batches"] == 1
    next(batches)
    assert loader.state_dict()["batches"] == 3


# devices, statistics


def as_pair(samples: list[int]) -> Pair:
    return Pair(torch.tensor(samples), {"labels": torch.tensor(samples)})


def test_batches_go_to_the_device() -> None:
    with DataLoader(Numbered(5), 2, collate_fn=as_pair, device="meta", drop_last=True) as loader:
        batches = list(loader)
    assert [type(batch) for batch in batches] == [Pair, Pair]
    assert all(batch.images.is_meta and batch.labels["labels"].is_meta for batch in batches)
    assert loader.stats().batches == 2
    cpu = DataLoader(Numbered(5), 2, device="cpu")
    assert values(cpu) == [[0, 1], [2, 3], [4]]
    cpu.load_state_dict({**cpu.state_dict(), "batches": 2})
    assert values(cpu) == [[4]]


def test_statistics_count_what_was_delivered() -> None:
    # Worker 0 is late with the first batch; the other batches are finished before it.
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
    with DataLoader(Numbered(9), 2) as alone:  # without workers, no batch is finished ahead
        list(alone)
        assert alone.stats().queue_depth == 0
    scalar = DataLoader(Numbered(3), None, collate_fn=torch.tensor)
    list(scalar)
    assert scalar.stats().images == 3
    text = DataLoader(Numbered(3), None)
    list(text)
    assert (text.stats().batches, text.stats().images) == (3, 0)
