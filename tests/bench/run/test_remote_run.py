"""A benchmark of data on a server: its ceilings, its verdict, and secrets kept out of its record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from one_thread import one_thread  # noqa: F401  (an autouse fixture)
from photo_folder import write_folder
from range_server import RangeServer
from remote_photos import open_remote, serve_photos, write_row_groups

from penstock.bench.probe.search import settings_sweep
from penstock.bench.probe.search.candidate import BenchData, Candidate
from penstock.bench.record.advice import Change
from penstock.bench.record.bench_record import READ_WARM, fetch_name
from penstock.bench.record.settings import BenchSettings
from penstock.bench.run.benchmark import run_benchmark
from penstock.bench.run.measured_loader import LoaderTurns
from penstock.bench.run.take_advice import apply_change
from penstock.bench.verdict.judge import without_paths
from penstock.loaders import mix, open_source
from penstock.loaders.data.files.image_folder import ImageFolder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("photos"), 24))


@pytest.fixture
def server(tmp_path: Path, photos: ImageFolder) -> Iterator[RangeServer]:
    with serve_photos(tmp_path, photos) as served:
        yield served


def settings(**more: object) -> BenchSettings:
    asked = {"backend": "torch", "batch_size": 8, "size": 32, "seconds": 0.1, "rounds": 1, "model": None, "workers": 0}
    return BenchSettings(**{**asked, **more})  # type: ignore[arg-type]


def test_a_run_names_the_latency_of_its_storage(server: RangeServer, photos: ImageFolder) -> None:
    remote = open_remote(server, photos, requests=1, bytes_ahead=1)
    server.delay_s = 0.02
    record = run_benchmark(BenchData(remote, settings()), f"{server.url}/0.bin?key=secret", settings())
    ceilings = {measured.name: measured for measured in record.all_of("ceiling")}
    assert {fetch_name(1), fetch_name(4)} <= set(ceilings)
    assert READ_WARM not in ceilings
    assert record.store is not None
    assert "ms to the first byte" in ceilings[fetch_name(1)].note
    assert record.verdict is not None
    assert record.verdict.limit == "latency"
    assert "--requests 4" in " ".join(advice.what for advice in record.verdict.advice or ())
    traffic = record.all_of("loader")[0].traffic
    assert traffic is not None
    assert traffic.requests_per_s > 0
    document = json.dumps(without_paths(record).as_dict())
    assert "secret" not in document
    assert server.url not in document


def test_a_search_tries_more_requests_if_they_are_faster(
    server: RangeServer, photos: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_sweep, "FINAL_TRIALS", 1)
    remote = open_remote(server, photos, requests=1)
    server.delay_s = 0.02
    asked = settings(tune=True, tune_seconds=300.0, decoder="simplejpeg", dtype="uint8", apply=False)
    record = run_benchmark(BenchData(remote, asked), "data", asked)
    assert {tried.options["requests"] for tried in record.candidates} == {1, 4}
    assert record.verdict is not None
    chosen = record.choice.options["requests"]
    assert record.verdict.call.count(f"requests={chosen}") == 1


def test_a_loader_of_remote_data_is_opened_for_each_turn(server: RangeServer, photos: ImageFolder) -> None:
    candidate = Candidate(backend="torch", options={"workers": 0})
    with ExitStack() as stack:
        remote = LoaderTurns(BenchData(open_remote(server, photos), settings()).opener, candidate, stack)
        for number in (1, 2):
            with remote.turn() as loader:
                next(iter(loader))
                assert loader.stats().requests > 0
            asked = server.requests["all"]
            assert len(remote.ledgers()) == number
            with remote.turn() as other:
                assert other is not loader
            assert server.requests["all"] == asked  # nothing was fetched between measurements
        local = LoaderTurns(BenchData(photos, settings()).opener, candidate, stack)
        with local.turn() as loader, local.turn() as again:
            assert again is loader
        assert local.about["backend"] == "torch"


def test_advice_on_requests_changes_what_is_opened(server: RangeServer, photos: ImageFolder) -> None:
    opener = BenchData(open_remote(server, photos), settings()).opener
    present = Candidate(backend="torch", options={"workers": 0})
    changed = apply_change(present, Change(requests=9, bytes_ahead=5000, shuffle="blocks"))
    assert changed.options == {"workers": 0, "requests": 9, "bytes_ahead": 5000, "shuffle": "blocks"}
    with opener.open(changed) as loader:
        assert loader._source.options.requests == 9  # type: ignore[attr-defined]
        assert loader._source.options.bytes_ahead == 5000  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:in this order an epoch decodes about")
@pytest.mark.parametrize("kind", ["parquet", "mixed"])
def test_a_run_names_the_network_for_every_kind_of_source(server: RangeServer, photos: ImageFolder, kind: str) -> None:
    if kind == "parquet":
        write_row_groups(server.root / "photos.parquet", photos, 4)
        source = open_source(f"{server.url}/photos.parquet", requests=1, cache_bytes=1)
    else:
        remote = open_remote(server, photos, requests=1, bytes_ahead=1)
        source = mix({"near": (photos, 0.5), "far": (remote, 0.5)})
    server.delay_s = 0.02
    asked = settings(seconds=0.3, decoder="simplejpeg", dtype="uint8", apply=False)  # some batches were made earlier
    record = run_benchmark(BenchData(source, asked), "data", asked)
    assert fetch_name(1) in {measured.name for measured in record.all_of("ceiling")}
    assert record.verdict is not None
    assert record.verdict.limit == "latency", record.verdict.sentence
    assert "--requests 4" in " ".join(advice.what for advice in record.verdict.advice or ())
