"""Ceilings of remote storage: latency and bandwidth, from a server that limits one or the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photo_folder import write_folder
from range_server import RangeServer
from remote_photos import open_remote, serve_photos, write_row_groups

from penstock.bench.checks.doctor_data import remote_speed
from penstock.bench.probe.ceilings.decode import DecodeCeilings, all_decoders
from penstock.bench.probe.ceilings.remote_data import count_remote, fetched_apart, find_remote, has_remote_samples
from penstock.bench.probe.ceilings.store import StoreCeiling
from penstock.loaders import LoaderError, concat, mix, open_source
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.remote.remote_source import RemoteSource
from penstock.loaders.data.sources.data import as_data
from penstock.pipelines import imagenet_train

SHORT_S = 0.05


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("photos"), 40))


@pytest.fixture
def server(tmp_path: Path, photos: ImageFolder) -> Iterator[RangeServer]:
    with serve_photos(tmp_path, photos) as served:
        yield served


def test_more_requests_fetch_more_from_distant_storage(server: RangeServer, photos: ImageFolder) -> None:
    remote = open_remote(server, photos, requests=1, bytes_ahead=10_000_000)
    server.delay_s = 0.02
    store = StoreCeiling(remote, 4, 0)
    assert store.gains_by_more(SHORT_S)
    time = store.time()
    assert time is not None
    assert (time.requests, time.more_requests) == (1, 4)
    assert time.first_byte_s >= 0.02
    assert not time.is_queueing
    assert time.images_per_request >= 1
    finding = remote_speed("data", remote, 4)
    assert finding.state == "warn"
    assert "with 1 concurrent requests" in finding.found
    assert "requests=4" in finding.fix
    tight = StoreCeiling(open_remote(server, photos, requests=1, bytes_ahead=1), 4, 0)
    assert not tight.gains_by_more(SHORT_S)  # more than the loader's bytes ahead


def test_more_requests_are_not_tried_if_the_bandwidth_is_used_up(server: RangeServer, photos: ImageFolder) -> None:
    remote = open_remote(server, photos, requests=16)
    server.bytes_per_s = 200e3
    store = StoreCeiling(remote, 4, 0)
    store.rate(SHORT_S)
    time = store.time()
    assert time is not None
    assert time.is_queueing
    assert time.bytes_per_s <= 1.2 * server.bytes_per_s
    with pytest.raises(ValueError, match=r"each of 16 concurrent requests takes .* the bandwidth is used up"):
        store.rate_of_more(SHORT_S)
    assert remote_speed("data", remote, 4).state == "ok"
    server.stop()
    server.fault = lambda path, number: 404
    with pytest.raises(LoaderError, match="E-MISSING"):
        store.rate(SHORT_S)


def test_the_requests_are_those_of_a_loader_for_the_selected_part(server: RangeServer, photos: ImageFolder) -> None:
    remote = open_remote(server, photos)
    store = StoreCeiling(as_data(remote).take(np.arange(0, 40, 3)), 40, 0)
    wanted = store._next()  # neighbours in one container: every third image
    assert sorted(found.sample for found in wanted.ranges) == list(range(0, 40, 3))
    assert [found.size for found in wanted.ranges] == [len(photos.read(found.sample)) for found in wanted.ranges]


def test_a_loader_of_remote_data_fetches_its_own(server: RangeServer, photos: ImageFolder) -> None:
    remote = open_remote(server, photos)
    part = as_data(remote).take(np.arange(9))
    apart = fetched_apart(part, requests=7)
    (found,) = find_remote(apart)
    assert isinstance(found, RemoteSource)
    assert (found.options.requests, remote.options.requests) == (7, None)
    assert apart.read(3) == photos.read(3)
    assert (found.traffic[0], remote.traffic[0]) == (1, 0)
    assert fetched_apart(photos) is photos
    assert find_remote(photos) == []


def test_remote_samples_are_decoded_from_memory(server: RangeServer, photos: ImageFolder) -> None:
    remote = open_remote(server, photos)
    ceilings = DecodeCeilings(lambda *, cached: remote, imagenet_train(32), 0)
    decoders = [ceilings.of(name, cached=False) for name in all_decoders()]
    sent = server.requests["all"]
    server.stop()
    assert all(decoder.measure(SHORT_S).images > 0 for decoder in decoders)
    assert server.requests["all"] == sent


def test_images_by_url_are_measured_as_remote_too(server: RangeServer, photos: ImageFolder) -> None:
    for index in range(len(photos)):
        (server.root / f"{index}.jpg").write_bytes(bytes(photos.read(index)))
    source = open_source([(f"{server.url}/{index}.jpg", index % 2) for index in range(len(photos))], requests=1)
    server.delay_s = 0.1
    finding = remote_speed("data", source, 4)
    assert finding.state == "warn"
    assert "with 1 concurrent requests" in finding.found
    assert find_remote(fetched_apart(source)) not in ([], [source])
    assert source.traffic == (0, 0)  # type: ignore[attr-defined]


def test_row_groups_by_url_are_measured_as_remote_too(server: RangeServer, photos: ImageFolder) -> None:
    write_row_groups(server.root / "photos.parquet", photos, 4)
    source = open_source(f"{server.url}/photos.parquet", requests=1, cache_bytes=1)
    (remote,) = find_remote(source)
    assert remote.requests_under_way(64) == 8  # groups decoded at once, each with one request
    server.delay_s = 0.1
    store = StoreCeiling(source, 8, 0)
    assert store.gains_by_more(SHORT_S)
    time = store.time()
    assert time is not None
    assert (time.requests, time.more_requests, time.share) == (1, 4, 1.0)
    assert 1 <= time.images_per_request <= 4  # of 8 random samples, those in one group
    assert source.traffic[0] == 0  # type: ignore[attr-defined]
    server.delay_s = 0.0
    several = StoreCeiling(open_source(f"{server.url}/photos.parquet", requests=8, cache_bytes=1), 8, 0)
    assert several.more_requests is None
    kept = StoreCeiling(open_source(f"{server.url}/photos.parquet"), 8, 0)
    kept.rate(SHORT_S)
    assert kept.time().images_per_request == 4  # type: ignore[union-attr]  # each group is fetched once


def test_requests_for_row_groups_cover_their_bytes(server: RangeServer, photos: ImageFolder) -> None:
    write_row_groups(server.root / "photos.parquet", photos, 4)
    source: Any = open_source(f"{server.url}/photos.parquet")
    planned = [request.ranges[0] for request in source.plan_requests(np.arange(40))]
    assert sum(part.size for part in planned) > 0.98 * (server.root / "photos.parquet").stat().st_size
    assert [source.read(index) for index in range(40)] == [photos.read(index) for index in range(40)]
    assert source.traffic[0] == len(planned) == 10
    assert source.traffic[1] == pytest.approx(sum(part.size for part in planned), rel=0.3)  # statistics hold images


def test_remote_parts_of_joined_and_mixed_data_are_measured(server: RangeServer, photos: ImageFolder) -> None:
    remote = open_remote(server, photos, requests=5)
    joined = concat([photos, as_data(remote).take(np.arange(10)), remote])
    assert find_remote(joined) == [remote]
    assert count_remote(joined, np.arange(90)) == 50
    store = StoreCeiling(joined, 16, 0)
    store.rate(SHORT_S)
    time = store.time()
    assert time is not None
    assert time.share == pytest.approx(50 / 90)
    assert (time.requests, time.under_way) == (5, 5)
    apart: Any = fetched_apart(joined, requests=7)
    (found,) = find_remote(apart)  # still one source that includes the other
    assert found.options.requests == 7
    assert apart.parts[0] is photos
    assert apart.read(45) == photos.read(5)
    mixed = mix({"near": (photos, 0.75), "far": (remote, 0.25)})
    assert fetched_apart(mixed).mixture == mixed.mixture  # type: ignore[attr-defined]
    far = StoreCeiling(mixed, 16, 0)
    images_before = far._next().images
    assert images_before >= 2  # of four images served per request, one is fetched
    far.rate(SHORT_S)
    assert far.time().share == pytest.approx(0.25, abs=0.1)  # type: ignore[union-attr]
    assert not has_remote_samples(as_data(joined).take(np.arange(40)))
    with pytest.raises(LoaderError, match="no sample of an epoch is remote"):
        StoreCeiling(as_data(joined).take(np.arange(40)), 16, 0).rate(SHORT_S)
