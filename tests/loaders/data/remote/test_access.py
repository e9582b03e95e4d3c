"""The options of requests reach every request: of opening, indexing, copying, reading and refreshing."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from photo_folder import photo
from range_server import RangeServer
from source_kinds import KINDS, Data, Rows, kinds_that, serve_kinds

from penstock.loaders.data.remote.access import DEFAULT, Access
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.sources.sample import read_sample

COUNT = 6
IN_STORAGE = [name for name in KINDS if "URL" in name or "S3" in name]


def rows(first: int) -> Rows:
    return Rows.of([photo(first + n) for n in range(COUNT)], [f"class{n // 3}" for n in range(COUNT)], parts=2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RangeServer]:
    with serve_kinds(tmp_path_factory.mktemp("kinds")) as server:
        yield server


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """`retry_s` of each ObjectStore."""
    found: list[float] = []
    plain = ObjectStore.__init__

    def begin(self: ObjectStore, access: Access = DEFAULT) -> None:
        found.append(access.retry_s)
        plain(self, access)

    monkeypatch.setattr(ObjectStore, "__init__", begin)
    return found


@pytest.mark.parametrize("kind", IN_STORAGE)
def test_the_options_of_requests_reach_each_of_them(server: RangeServer, made: list[float], kind: str) -> None:
    data = Data(server, kind, rows(0))
    source: Any = data.open(retry_s=7)
    read_sample(source, 0)
    assert set(made) == {7}
    if kind in kinds_that("pickle"):
        read_sample(pickle.loads(pickle.dumps(source)), 1)
    if kind in kinds_that("refresh"):
        data.write(rows(50))
        again = source.refreshed()
        assert again is not source
        read_sample(again, 1)
    assert set(made) == {7}


@pytest.mark.parametrize("kind", IN_STORAGE)
def test_the_options_of_requests_do_not_change_the_data(server: RangeServer, kind: str) -> None:
    data = Data(server, kind, rows(0))
    one, other = data.open(retry_s=7), data.open()
    assert one.fingerprint == other.fingerprint
    assert getattr(one, "content", "") == getattr(other, "content", "")


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "5", True])
def test_retry_s_must_be_a_time(value: object) -> None:
    with pytest.raises(ValueError, match="retry_s must be"):
        Access.among({"retry_s": value})
    assert Access.among({"retry_s": 0.5, "label": "cls"}) == Access(retry_s=0.5)
    assert Access.among({"retry_s": None}) == DEFAULT
