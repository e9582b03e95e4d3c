"""A substitute for a bad sample comes from the order of the epoch, with every engine and any number of ranks."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from memory_source import MemorySource
from photo_folder import photo

from penstock.loaders import Blocks, LoaderError, create_loader, mix, open_source
from penstock.loaders.front.loader import Loader
from penstock.pipelines import ImagePipeline

COUNT, EPOCHS = 24, 2
TINY = ImagePipeline(size=(4, 4))
# Each leaves out some data or orders it differently. The sources of `mixed` are the even and the odd samples.
ORDERS: dict[str, dict[str, Any]] = {
    "shuffled": {},
    "in order": {"shuffle": False},
    "blocks": {"shuffle": Blocks(samples=3, group=4)},
    "weights by class": {"weights": {"1": 1.0}, "epoch_samples": 30},
    "weights": {"weights": [1.0, 0.0, 2.0] * (COUNT // 3), "epoch_samples": 20},
    "balanced": {"weights": "balanced"},
    "subset": {"subset": list(range(1, COUNT, 3))},
    "max_per_class": {"max_per_class": 4},
    "a mixture": {"mixed": (0.75, 0.25), "epoch_samples": 30},
    "a mixture with a share of 0": {"mixed": (1.0, 0.0), "epoch_samples": 17},
    "a mixture by epoch": {"mixed": ([1, 0], [0, 1])},
}
ENGINES: dict[str, dict[str, Any]] = {
    "in the process": {"workers": 0},
    "Python decoder": {"workers": 0, "decoder": "pillow"},
    "threads": {"workers": 3, "workers_are": "threads"},
    "processes": {"workers": 2, "workers_are": "processes"},
}


class Photos(MemorySource):
    """Photos in memory in three alternating classes; some samples are broken."""

    classes = (b"0", b"1", b"2")

    def __init__(self, numbers: list[int], bad: frozenset[int]) -> None:
        super().__init__([b"\xff\xd8 broken" if number in bad else photo(number % 6) for number in numbers])
        self.numbers = np.array(numbers, np.int64)

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self.numbers[indices] % 3

    def path(self, index: int) -> bytes:
        return b"memory/%d.jpg" % self.numbers[index]


def open_loader(order: str, bad: frozenset[int], **settings: Any) -> Loader:
    options = {**ORDERS[order], "batch_size": 6, "seed": 5, "workers": 0, "dtype": torch.uint8, **settings}
    shares = options.pop("mixed", None)
    source: Any = Photos(list(range(COUNT)), bad)
    if shares is not None:
        halves = [Photos(list(range(first, COUNT, 2)), bad) for first in range(2)]
        source = mix({str(number): pair for number, pair in enumerate(zip(halves, shares, strict=True))})
    part = {name: options.pop(name) for name in ("subset", "max_per_class") if name in options}
    options = {"pipeline": TINY, "on_bad_sample": "replace", "drop_last": False, **options}
    return create_loader(open_source(source, **part), **options)


def serve(loader: Loader) -> list[list[list[int]]]:
    """Return the indices of each batch of each epoch."""
    with loader:
        epochs = [[batch.index.tolist() for batch in loader.batches()] for _ in range(EPOCHS)]
        for epoch, batches in enumerate(epochs):
            ledger, served = loader.ledger(epoch), [index for batch in batches for index in batch]
            assert ledger.planned == ledger.delivered + ledger.replaced == len(served)
            assert {entry.substitute for entry in ledger.bad} <= set(served)
            assert not ledger.sources or sum(ledger.sources.values()) == len(served)
    return epochs


@cache
def clean_stream(order: str) -> tuple[list[list[int]], dict[int, int]]:
    """Return the order of each epoch without bad samples, and the photo number of each index."""
    with open_loader(order, frozenset(), batch_size=1) as loader:
        paths = loader.paths(np.arange(len(loader.dataset)))
    epochs = serve(open_loader(order, frozenset(), batch_size=1))
    return list(map(flat, epochs)), {index: int(path.partition("/")[2][:-4]) for index, path in enumerate(paths)}


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


def expect(order: str, bad: frozenset[int]) -> list[list[int]]:
    """Return the stream without bad samples, where the next good sample of the epoch replaces each bad one."""
    expected, (epochs, names) = [], clean_stream(order)
    for epoch in epochs:
        following = [epoch[place:] + epoch[:place] for place in range(len(epoch))]
        expected.append([next(index for index in rest if names[index] not in bad) for rest in following])
    return expected


def cases() -> list[tuple[str, frozenset[int]]]:
    draws = np.random.default_rng(11)
    return [
        (order, frozenset(draws.choice(COUNT, draws.integers(1, 6), replace=False).tolist()))
        for order in ORDERS
        for _ in range(4)
    ]


@pytest.mark.parametrize(("order", "bad"), cases())
def test_the_next_good_sample_of_the_order_replaces_a_bad_one(order: str, bad: frozenset[int]) -> None:
    expected = expect(order, bad)
    for batch_size in (1, 7):
        served = list(map(flat, serve(open_loader(order, bad, batch_size=batch_size))))
        if order == "blocks" and batch_size > 1:  # a step sorts its samples by the lane of their block
            served, expected = list(map(sorted, served)), list(map(sorted, expected))
        assert served == expected


BAD = frozenset({2, 4, 5, 12, 13})


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("order", ["shuffled", "weights", "a mixture", "subset"])
def test_every_engine_finds_the_same_substitutes(order: str, engine: str) -> None:
    settings = {"batch_size": 8} | ENGINES[engine]
    assert list(map(flat, serve(open_loader(order, BAD, **settings)))) == expect(order, BAD)


@pytest.mark.parametrize("order", ["shuffled", "blocks", "weights by class", "a mixture by epoch"])
def test_ranks_and_a_resume_find_the_same_substitutes(order: str) -> None:
    alone = serve(open_loader(order, BAD))
    parts = [serve(open_loader(order, BAD, batch_size=2, rank=rank, world_size=3)) for rank in range(3)]
    for epoch, whole in enumerate(alone):
        joined = [sorted(flat(list(rows))) for rows in zip(*(part[epoch] for part in parts), strict=True)]
        assert [[index for index in step if index >= 0] for step in joined] == [sorted(step) for step in whole]
    with open_loader(order, BAD) as loader:
        steps = loader.batches()
        head = [next(steps).index.tolist() for _ in range(2)]
        state = json.loads(json.dumps(loader.state_dict()))
    with open_loader(order, BAD, workers=2, workers_are="threads") as loader:
        loader.load_state_dict(state)
        assert head + [batch.index.tolist() for batch in loader.batches()] == alone[0]


def test_patches_buckets_and_transforms_get_substitutes_from_the_order() -> None:
    settings: dict[str, Any]
    for settings in ({"buckets": [(4, 4), (4, 6)]}, {"transform": lambda image: image}, {"sizes": {0: 4, 1: 6}}):
        with open_loader("shuffled", BAD, weights=None, **settings) as loader:
            served = [index for batch in loader.batches() for index in batch.index.tolist()]
            assert len(loader.ledger().bad) == len(BAD)
        assert sorted(set(served)) == sorted(set(range(COUNT)) - BAD)


def test_an_order_without_a_good_sample_ends_the_epoch() -> None:
    ones = frozenset(range(1, COUNT, 3))
    for order in ("weights by class", "subset"):
        with open_loader(order, ones) as loader, pytest.raises(LoaderError, match=r"E-MAXBAD.*no good sample"):
            list(loader)
