"""Fixtures that all tests of the drop-in DataLoader share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from numbered_dataset import Numbered

from penstock.loaders.drop_in.data_loader import DataLoader


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let these tests fork although torch, which they import, has threads."""
    item.add_marker(pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"))


@pytest.fixture(scope="module")
def pool() -> Iterator[DataLoader[Any]]:
    """A shuffled loader of 11 samples in batches of 2 with two workers, for tests that only look at its stream."""
    with DataLoader(Numbered(11), 2, shuffle=True, num_workers=2, seed=5, persistent_workers=True) as loader:
        yield loader
