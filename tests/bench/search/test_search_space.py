"""The values that a search tries: the backend's own first, none that the user has fixed."""

from __future__ import annotations

from pathlib import Path

import pytest
from photo_folder import write_folder

from penstock.bench.record.backend_options import all_options, non_default_options
from penstock.bench.record.bench_record import BenchSettings
from penstock.bench.search import backends as module
from penstock.bench.search.backends import values_to_try
from penstock.loaders import create_loader


@pytest.mark.parametrize("backend", ["torch", "hdf5"])
@pytest.mark.parametrize("cpus", [0, 1, 2, 8, 9, 64])
def test_numbers_of_workers_go_from_none_to_twice_the_processors(
    backend: str, cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "default_workers", lambda: cpus)
    space = values_to_try(backend, BenchSettings())
    workers = [int(value) for value in space["workers"] if isinstance(value, int)]
    assert workers[0] == cpus
    assert {0, cpus + 1, 2 * cpus, max(0, cpus - 1), cpus // 2} <= set(workers)
    assert len(set(workers)) == len(workers) <= 11
    assert max(workers) <= max(1, 2 * cpus)
    own = non_default_options(backend, {name: values[0] for name, values in space.items()})
    assert own == {}  # the search begins with the backend's defaults


@pytest.mark.parametrize("cpus", [1, 2, 64])
def test_the_first_value_is_what_the_backend_takes_by_itself(
    cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "default_workers", lambda: cpus)
    monkeypatch.setattr("penstock.loaders.engine.options.default_workers", lambda: cpus)
    space = values_to_try("dali", BenchSettings())
    with create_loader(write_folder(tmp_path, 6), backend="dali", batch_size=2) as loader:
        about = loader.describe()
    assert {name: values[0] for name, values in space.items()} == {name: about[name] for name in space}
    assert {"workers", "readers", "prefetch"} == set(space)
    for values in space.values():
        assert len(set(values)) == len(values) > 1
        assert all(isinstance(value, int) and value >= 1 for value in values)


def test_what_the_user_fixed_and_what_nobody_searches_is_left_alone() -> None:
    assert set(values_to_try("dali", BenchSettings(workers=3))) == {"readers", "prefetch"}
    assert values_to_try("dali", BenchSettings(workers=0)) == {}
    assert set(values_to_try("torch", BenchSettings(workers=3))) == {"prefetch"}
    assert values_to_try("auto", BenchSettings()) == {}


def test_the_call_names_what_the_backend_would_not_choose_by_itself() -> None:
    options = {"prefetch": 2, "hw_decoder_load": 0.8, "readers": 1, "device_memory_padding": None}
    assert non_default_options("dali", options) == {"hw_decoder_load": 0.8, "readers": 1}
    assert non_default_options("hdf5", {"workers": 2, "prefetch": 3, "workers_are": "threads"}) == {
        "workers_are": "threads"
    }
    assert non_default_options("torch", {}) == {}


def test_what_a_loader_took_by_itself_is_kept_with_what_it_was_told() -> None:
    about = {"backend": "hdf5", "workers": 2, "prefetch": 3, "workers_are": "threads", "start_method": "forkserver"}
    assert all_options("hdf5", {"workers": 1, "prefetch": 6}, about) == {
        "workers": 1,
        "prefetch": 6,
        "workers_are": "threads",
    }
    assert all_options("dali", {"workers": 0}, {"readers": 0, "prefetch": 2}) == {"workers": 0, "prefetch": 2}
