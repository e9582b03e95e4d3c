"""Where an iteration begins: one look at a batch is free, while next(iter(loader)) per step advances."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from penstock.loaders import ByUpdate, DataLoader, create_loader
from penstock.loaders.front.loader import Loader
from penstock.pipelines import ImagePipeline

COUNT, BATCH = 32, 4
DATA = np.zeros((COUNT, 2, 2, 3), np.uint8), np.arange(COUNT)
AGAIN = "to get all batches keep the iterator"


def open_loader(**options: Any) -> Loader:
    defaults: dict[str, Any] = {"pipeline": ImagePipeline(size=(2, 2), crop="full"), "seed": 1, "workers": 0}
    return create_loader(DATA, **{**defaults, "batch_size": BATCH, **options})


def first_batches(**options: Any) -> list[list[int]]:
    """Return the first batch of each epoch."""
    found = []
    with open_loader(**options) as loader:
        for epoch in range(8):
            loader.set_epoch(epoch)
            found.append(next(iter(loader))[1].tolist())
    return found


def look(loader: Any) -> list[int]:
    numbers: list[int] = next(iter(loader))[1].tolist()
    return numbers


@pytest.mark.parametrize("workers", [0, 2])
def test_one_look_is_free_and_more_take_first_batches_of_later_epochs(workers: int) -> None:
    expected = first_batches()
    with open_loader(workers=workers) as loader:
        assert [look(loader), look(loader)] == [expected[0]] * 2
        with pytest.warns(UserWarning, match=AGAIN):
            assert look(loader) == expected[1]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # only one warning
            assert [look(loader) for _ in range(4)] == expected[2:6]
            assert len({label for _, labels in loader for label in labels.tolist()}) == COUNT  # a whole epoch
        assert loader.epoch == 7
        assert [look(loader), look(loader)] == [expected[7]] * 2  # after a whole epoch a look is free again


def test_a_look_before_each_epoch_removes_nothing_from_it() -> None:
    with open_loader() as plain, open_loader() as looked:
        for _ in range(3):
            look(looked)
            assert [labels.tolist() for _, labels in looked] == [labels.tolist() for _, labels in plain]


def test_longer_iterations_and_set_epoch_end_a_series_of_looks() -> None:
    expected = first_batches()
    with open_loader() as loader:
        assert look(loader) == expected[0]
        steps = iter(loader)
        next(steps)
        next(steps)
        assert [look(loader), look(loader)] == [expected[1]] * 2
        loader.set_epoch(5)
        assert [look(loader), look(loader)] == [expected[5]] * 2


def test_looks_without_shuffling_give_the_first_batch_without_a_warning() -> None:
    with open_loader(shuffle=False) as loader:
        assert [look(loader) for _ in range(5)] == [list(range(BATCH))] * 5


def test_a_state_after_looks_counts_delivered_batches() -> None:
    with open_loader() as loader:
        look(loader)
        look(loader)
        with pytest.warns(UserWarning, match=AGAIN):
            head = look(loader)
        state = loader.state_dict()
    with open_loader() as loader:
        loader.load_state_dict(state)
        rest = [label for _, labels in loader for label in labels.tolist()]
        assert sorted(head + rest) == list(range(COUNT))
        assert loader.epoch == 2
        expected = first_batches()[2]
        assert [look(loader), look(loader)] == [expected] * 2


@pytest.mark.parametrize("options", [{}, {"seed": 3}])
def test_looks_of_the_drop_in_loader_take_other_batches(options: dict[str, Any]) -> None:
    loader = DataLoader(TensorDataset(torch.zeros(64), torch.arange(64)), batch_size=4, shuffle=True, **options)
    assert len({tuple(look(loader)) for _ in range(6)}) > 3


def test_sizes_by_update_warn_that_they_count_whole_epochs() -> None:
    sizes = ByUpdate({0: 2, 12: 4})
    with open_loader(sizes=sizes) as loader:
        steps = iter(loader)
        next(steps)
        next(steps)
        with pytest.warns(UserWarning, match="ByUpdate counts its remaining batches as served"):
            next(iter(loader))
    with open_loader(sizes=sizes) as loader:
        assert [images.shape[2] for _ in range(2) for images, _ in loader] == [2] * 12 + [4] * 4
