"""The user's own order: functions, samplers and arrays; when they are called, what a state keeps, what is refused."""

from __future__ import annotations

import itertools
import json
import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from penstock.loaders import LoaderError, create_loader
from penstock.loaders.front.loader import Loader
from penstock.loaders.make.own.own_indices import open_own_order
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.schedule import Schedule
from penstock.pipelines import ImagePipeline, imagenet_eval

SAMPLES, BATCH = 40, 4
IMAGES = np.random.default_rng(0).integers(0, 255, (SAMPLES, 8, 8, 3), dtype=np.uint8)
WORKERS: list[dict[str, Any]] = [
    {"workers": 0},
    {"workers": 2, "workers_are": "threads"},
    {"workers": 2, "workers_are": "processes", "prefetch": 3},
]


def drawn(epoch: int) -> np.ndarray:
    return np.random.default_rng(epoch).integers(0, SAMPLES, 22)


def open_loader(order: Any, **settings: Any) -> Loader:
    usual: dict[str, Any] = {"pipeline": ImagePipeline(size=(8, 8)), "batch_size": BATCH, "workers": 0}
    return create_loader((IMAGES, np.arange(SAMPLES)), order=order, with_index=True, **{**usual, **settings})


def serve(loader: Iterable[Any]) -> list[list[int]]:
    return [index.tolist() for _, _, index in loader]


def batches_of(order: Any, epoch: int) -> list[list[int]]:
    indices = order(epoch).tolist()
    return [indices[first : first + BATCH] for first in range(0, len(indices) // BATCH * BATCH, BATCH)]


def refuse(order: Any, words: str, **settings: Any) -> None:
    with pytest.raises(ValueError, match=words):
        open_loader(order, **settings)


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_an_order_is_served_from_any_place_and_called_when_its_epoch_begins(workers: dict[str, Any]) -> None:
    called: list[int] = []

    def order(epoch: int) -> np.ndarray:
        called.append(epoch)
        return drawn(epoch)

    states = []
    with open_loader(order, **workers) as loader:
        assert called == [0, 0]
        for epoch in range(3):
            assert len(loader) == 5
            for step, (_, _, index) in enumerate(loader):
                assert index.tolist() == batches_of(drawn, epoch)[step]
                assert called == [0, *range(epoch + 1)]  # batches of the next epoch are not made yet
                states.append(json.loads(json.dumps(loader.state_dict())))
        next(iter(loader))
        loader.set_epoch(1)
        assert serve(loader) == batches_of(drawn, 1)  # after batches of epoch 3 were begun
    with open_loader(drawn, **workers) as loader:
        for state in (*states[::4], states[0]):
            loader.load_state_dict(state)
            epoch, step = state["epoch"], state["position"] // BATCH
            assert serve(loader) == batches_of(drawn, epoch)[step:]
            assert serve(loader) == batches_of(drawn, epoch + 1)


def test_evaluation_serves_the_order_to_its_end() -> None:
    order = np.arange(SAMPLES)[::-3]
    with open_loader(order, pipeline=imagenet_eval(8)) as loader:
        assert list(itertools.chain(*serve(loader))) == order.tolist()
    ranks = []
    for rank in range(2):
        with open_loader(order, pipeline=imagenet_eval(8), rank=rank, world_size=2) as loader:
            ranks.append(serve(loader))
    served = [index for parts in zip(*ranks, strict=True) for index in itertools.chain(*parts)]
    assert served == [*order.tolist(), -1, -1]


def test_whole_images_are_trained_on_in_the_order() -> None:
    whole = ImagePipeline(size=(8, 8), crop="none", flip=0)
    with open_loader(drawn, pipeline=whole, transform=lambda image: image[:6, :6]) as loader:
        batches = list(loader)
    assert [index.tolist() for _, _, index in batches] == batches_of(drawn, 0)  # the short last one is dropped


def test_a_repeated_sample_has_other_crops_each_time() -> None:
    with open_loader([3] * 12, pipeline=ImagePipeline(size=(4, 4)), batch_size=12) as loader:
        (batch,) = loader.batches()
    assert len(np.unique(batch.windows, axis=0)) > 6


# ---- samplers ----


class FromNumpy(Sampler[int]):
    """A sampler that draws from the global generators of numpy and Python, as MPerClassSampler does."""

    def __iter__(self) -> Iterator[int]:
        yield from np.random.permutation(SAMPLES)[:10].tolist()  # noqa: NPY002
        yield random.randrange(SAMPLES)

    def __len__(self) -> int:
        return 11


class ByEpoch(Sampler[int]):
    """A sampler that is told its epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(drawn(self.epoch).tolist())


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "random": lambda: RandomSampler(range(SAMPLES)),
    "random, own generator": lambda: RandomSampler(range(SAMPLES), generator=seeded()),
    "weighted": lambda: WeightedRandomSampler([1.0] * SAMPLES, 17),
    "subset": lambda: SubsetRandomSampler(range(3, 30)),
    "numpy": FromNumpy,
    "by epoch": ByEpoch,
}


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
def test_samplers_are_functions_of_seed_and_epoch_and_leave_generators_alone(make: Callable[[], Any]) -> None:
    own = torch.Generator().manual_seed(2)
    sampler = make()
    if isinstance(sampler, RandomSampler) and sampler.generator is not None:
        sampler.generator = own
    before = torch.get_rng_state(), own.get_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    first, again = open_own_order(sampler, SAMPLES, 1), open_own_order(make(), SAMPLES, 1)
    epochs = []
    for epoch in (0, 1, 7, 1):
        assert first.begin(epoch) == again.begin(epoch)
        epochs.append(first(epoch, np.arange(first.n)).tolist())
    assert epochs[0] != epochs[1] == epochs[3]
    for left, right in zip(before, (torch.get_rng_state(), own.get_state()), strict=False):
        assert torch.equal(left, right)  # type: ignore[arg-type]
    assert random.getstate() == before[3]
    assert np.array_equal(np.random.get_state()[1], before[2][1])  # type: ignore[index]  # noqa: NPY002
    if make is not ByEpoch:
        assert open_own_order(make(), SAMPLES, 2).first_digest != first.first_digest


def test_kinds_of_indices() -> None:
    for order in ([1, 2, 3], (1, 2, 3), range(1, 4), np.array([1, 2, 3], np.uint8), torch.tensor([1, 2, 3])):
        for given in (order, lambda epoch, order=order: order):
            made = open_own_order(given, SAMPLES, 0)
            assert made(0, np.arange(3)).tolist() == [1, 2, 3]
            assert made.has(5) == (given is order)
    items: list[Any] = [torch.tensor(1), np.int32(2), 3]
    assert open_own_order(lambda epoch: items, SAMPLES, 0)(0, np.arange(3)).tolist() == [1, 2, 3]
    assert open_own_order(lambda epoch: itertools.cycle([4, 2]), SAMPLES, 0, 5).n == 5
    assert open_own_order(SequentialSampler(range(SAMPLES)), SAMPLES, 0).n == SAMPLES


# ---- refusals ----


def test_unsuitable_orders_are_refused() -> None:
    refuse(DistributedSampler(range(SAMPLES), 2, 0), "share of one rank")
    refuse(BatchSampler(SequentialSampler(range(SAMPLES)), 4, True), "not batches: pass the sampler's own sampler")
    refuse(iter([1, 2]), "ends after one epoch: pass list")
    refuse("random", "order must be a function of the epoch")
    refuse(RandomSampler, "order must be a function of the epoch")
    refuse(lambda epoch: [SAMPLES], "from 0 to 39 for epoch 0, got 40")
    refuse(lambda epoch: [-1], "from 0 to 39 for epoch 0, got -1")
    refuse(lambda epoch: [], "no indices for epoch 0")
    refuse(lambda epoch: [0.5], "integer indices")
    refuse(lambda epoch: np.array(5), "integer indices")
    refuse(np.ones(SAMPLES, bool), "a mask: pass np.flatnonzero")
    refuse(lambda epoch: [[1, 2], [3]], "returned batches")
    refuse(lambda epoch: np.random.default_rng().permutation(SAMPLES), "other indices when it was called")
    refuse(lambda epoch: 1 // 0, "raised ZeroDivisionError")
    refuse(lambda epoch: itertools.count(), "more than 100 passes")
    refuse([1, 2, 3], "fewer than epoch_samples=4", epoch_samples=4)
    refuse(drawn, "order and shuffle cannot be combined", shuffle=True)
    refuse(drawn, "do not pass buckets, weights", weights="balanced")
    refuse([1, 2, 3], "3 samples cannot fill a global batch of 4")


def test_an_order_that_changes_is_refused() -> None:
    with open_loader(drawn) as loader:
        next(iter(loader))
        state = loader.state_dict()
        assert "indices" in state
        stream = iter(loader)
        next(stream)
        with pytest.raises(LoaderError, match=r"E-STATE.*other indices for epoch 3 than in the saved state"):
            loader.load_state_dict({**state, "epoch": 3})
        assert len(list(stream)) == 4  # it continues where it was
        assert "indices" not in loader.state_dict()  # at the beginning of an epoch nothing was served
    with open_loader(lambda epoch: drawn(epoch + 1)) as loader:
        with pytest.raises(LoaderError, match=r"E-STATE.*other indices for epoch 0 than in the saved state"):
            loader.load_state_dict(state)
        loader.load_state_dict({**state, "position": 0})
    with open_loader(None) as loader, pytest.raises(LoaderError, match="order=, this loader has shuffle=True"):
        loader.load_state_dict(state)
    shift = 0
    with open_loader(lambda epoch: drawn(epoch + shift)) as loader:
        list(loader)
        list(loader)
        shift = 5
        loader.set_epoch(0)
        with pytest.raises(LoaderError, match="returned other indices for epoch 0 than before"):
            list(loader)


def test_an_error_of_a_later_epoch_is_raised_when_it_begins_and_can_be_mended() -> None:
    ready = 1

    def order(epoch: int) -> list[int]:
        return list(range(ready * 8 if epoch else 8))

    for workers in WORKERS:
        with open_loader(order, **workers) as loader:
            assert len(serve(loader)) == 2
            ready = 2
            with pytest.raises(LoaderError, match="got 16 for epoch 1 and 8 for epoch 0"):
                list(loader)
            ready = 1
            assert serve(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
            assert loader.epoch == 2


def test_another_process_that_iterates_has_its_own_memory() -> None:
    order = open_own_order(ByEpoch(), SAMPLES, 0)
    copy = pickle.loads(pickle.dumps(order))
    for epoch in (0, 3):
        copy.begin(epoch)
        assert copy(epoch, np.arange(22)).tolist() == drawn(epoch).tolist()
    assert [order.has(0), order.has(3)] == [True, False]


def test_a_schedule_does_not_know_an_epoch_before_it_begins() -> None:
    order = open_own_order(drawn, SAMPLES, 0)
    schedule = Schedule(n=order.n, batch_size=BATCH, order=order)
    workers = schedule.for_workers()
    for epoch in (0, 3):
        schedule.begin(epoch)
        for each in (schedule, workers):
            assert [each.knows(0), each.knows(3)] == [epoch == 0, epoch == 3]
            assert each.batch(epoch, 8).tolist() == drawn(epoch)[8:12].tolist()
    assert schedule.after(Cursor(3, 16)) == Cursor(4, 0)
    with pytest.raises(LookupError):
        workers.batch(1, 0)
