"""Finds the remote samples of a source and the requests that fetch them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.remote.remote_source import RemoteOptions, Request
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.data.sources.data import Data, find_places, find_whole

_LOOKED_AT = 1024  # samples


@runtime_checkable
class RemoteData(Protocol):
    """A source that fetches samples with requests that can be planned: tars, Parquet files, images by URL."""

    @property
    def options(self) -> RemoteOptions:
        """Options for fetching."""
        ...

    def with_options(self, **changes: Any) -> Source:
        """Return a source of the same data with its own fetcher; `changes` are fields of RemoteOptions."""
        ...

    def plan_requests(self, indices: npt.NDArray[np.int64]) -> list[Request]:
        """Return the requests that fetch images `indices` (int64 [n]) if all are announced at once."""
        ...

    def requests_under_way(self, requests: int) -> int:
        """Return the number of concurrent requests if at most `requests` are allowed."""
        ...


def find_remote(source: Source) -> list[RemoteData]:
    """Return the remote sources that `source` consists of, each once; none for local data."""
    return [whole for whole in find_whole(source) if isinstance(whole, RemoteData)]


def has_remote_samples(source: Source) -> bool:
    """Return whether samples of `source` come from remote storage; checks some of them."""
    some = np.linspace(0, len(source), min(len(source), _LOOKED_AT), endpoint=False).astype(np.int64)
    return bool(find_remote(source)) and count_remote(source, some) > 0


def fetched_apart(source: Source, **changes: Any) -> Source:
    """Return the same data with separate fetchers for remote sources; `changes` are fields of RemoteOptions."""
    apart = {id(remote): remote.with_options(**changes) for remote in find_remote(source)}
    return _replace_remote(source, apart) if apart else source


def _replace_remote(source: Source, apart: dict[int, Source]) -> Source:
    if isinstance(source, Data):
        return source.with_readers([_replace_remote(part, apart) for part in source.parts])
    return apart.get(id(source), source)


def plan_requests(source: Source, indices: npt.NDArray[np.int64]) -> Iterator[Request]:
    """Yield the requests for images `indices` (int64 [n]); local images need none."""
    for whole, inner in find_places(source, indices):
        if isinstance(whole, RemoteData):
            yield from whole.plan_requests(inner)


def count_remote(source: Source, indices: npt.NDArray[np.int64]) -> int:
    """Return how many of images `indices` (int64 [n]) are remote."""
    return sum(len(inner) for whole, inner in find_places(source, indices) if isinstance(whole, RemoteData))
