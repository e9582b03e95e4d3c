"""Backends, decoders and settings in the search, and opening and measuring a candidate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from photo_folder import write_folder

from penstock.bench.probe.ceilings.decode import DecodeCeilings
from penstock.bench.probe.search import backends as module
from penstock.bench.probe.search import candidate as candidate_module
from penstock.bench.probe.search.backends import search_spaces, values_to_try
from penstock.bench.probe.search.candidate import Candidate, LoaderOpener
from penstock.bench.probe.search.settings_sweep import SearchSpace
from penstock.bench.probe.search.trials import TrialMeter, trial_seconds
from penstock.bench.record.non_default_options import all_options, non_default_options
from penstock.bench.record.settings import BenchSettings
from penstock.loaders import create_loader, open_source
from penstock.loaders.dali.dali_probe import Verdict
from penstock.loaders.data.sources.contract import Source
from penstock.pipelines import LoaderError, imagenet_train

PIPELINE = imagenet_train(32)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, Source]:
    """A folder of images and its cache."""
    photos = write_folder(tmp_path_factory.mktemp("photos"), 16)
    cache = tmp_path_factory.mktemp("cache") / "photos.h5"
    with create_loader(photos, backend="hdf5", cache=cache, batch_size=8, workers=0):
        return open_source(photos), open_source(cache)


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the native library."""
    monkeypatch.setattr(DecodeCeilings, "decoders", lambda ceilings, *, cached: ["simplejpeg", "turbojpeg", "pillow"])
    monkeypatch.setattr(candidate_module, "native_library", lambda: None)
    monkeypatch.setattr(module, "default_workers", lambda: 2)


def settings(**more: object) -> BenchSettings:
    return BenchSettings(**{"batch_size": 8, "size": 32, "dtype": "uint8", **more})  # type: ignore[arg-type]


def spaces_of(wanted: BenchSettings, opener: LoaderOpener) -> tuple[list[SearchSpace], dict[str, str]]:
    return search_spaces(wanted, opener, DecodeCeilings(opener.source, PIPELINE, 0))


def test_all_backends_that_can_run_enter_with_their_source(
    sources: tuple[Source, Source], two_processors: None
) -> None:
    files, cache = sources
    spaces, left_out = spaces_of(settings(), LoaderOpener(settings(), PIPELINE, files, cache))
    starts = {space.start.backend: space.start for space in spaces}
    assert list(starts) == ["hdf5", "torch", "dali"]
    assert starts["hdf5"].describe() == ("hdf5 of the cache, simplejpeg, workers 2, prefetch 3")
    assert starts["torch"].describe() == "torch of the files, simplejpeg, workers 2, prefetch 3"
    assert starts["dali"].describe() == "dali of the cache, workers 2, readers 1, prefetch 2"
    options = {space.start.backend: space.options for space in spaces}
    assert list(options["hdf5"]) == ["workers", "prefetch", "decoder"]
    assert options["hdf5"]["decoder"] == ("simplejpeg", "turbojpeg", "pillow")
    assert list(options["dali"]) == ["workers", "readers", "prefetch"]  # on a GPU it has more
    assert left_out == {}
    spaces, left_out = spaces_of(settings(), LoaderOpener(settings(), PIPELINE, files, None))
    assert [space.start.backend for space in spaces] == ["torch", "dali"]
    assert left_out == {"hdf5": "no cache given (--cache)"}


@pytest.mark.parametrize(("way", "tried"), [("regions", ("auto", "whole")), ("whole", None), ("ours", None)])
def test_on_a_gpu_whole_images_are_tried_and_regions_only_if_correct(
    sources: tuple[Source, Source], way: str, tried: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "working_way", lambda device: Verdict(way))
    monkeypatch.setattr(module, "numbered", lambda device: device)
    wanted = settings(device="cuda", backend="dali", tune=True)
    [[space], _] = spaces_of(wanted, LoaderOpener(wanted, PIPELINE, sources[0], None))
    assert space.options.get("decode") == tried
    assert space.options["hw_decoder_load"] == (0.65, 0.5, 0.8, 0.95)
    assert space.start.options.get("decode") == (tried and "auto")


def test_a_decoder_that_the_user_has_named_is_not_searched(
    sources: tuple[Source, Source], two_processors: None
) -> None:
    wanted = settings(backend="torch", tune=True, decoder="pillow")
    [[space], _] = spaces_of(wanted, LoaderOpener(wanted, PIPELINE, sources[0], None))
    assert (space.start.decoder, "decoder" in space.options) == ("pillow", False)


@pytest.mark.parametrize(("max_cpu", "workers"), [(None, 2), (1.9, 1), (0.5, 0), (64, 2)])
def test_the_search_begins_with_as_many_workers_as_allowed(
    sources: tuple[Source, Source], two_processors: None, max_cpu: float | None, workers: int
) -> None:
    wanted = settings(backend="hdf5", max_cpu=max_cpu, tune=True)
    [[space], _] = spaces_of(wanted, LoaderOpener(wanted, PIPELINE, *sources))
    assert (space.start.workers, space.fixed_workers) == (workers, False)
    fixed = settings(backend="hdf5", max_cpu=max_cpu, workers=3)
    [[space], _] = spaces_of(fixed, LoaderOpener(fixed, PIPELINE, *sources))
    assert (space.start.workers, space.fixed_workers, "workers" in space.options) == (3, True, False)


def test_data_that_is_a_cache_is_named_so(sources: tuple[Source, Source]) -> None:
    opener = LoaderOpener(settings(), PIPELINE, sources[1], None)
    assert (opener.has(cached=True), opener.has(cached=False)) == (True, False)
    candidate = Candidate(backend="hdf5", dtype="uint8", cached=True, options={"workers": 0, "workers_are": "threads"})
    with opener.open(candidate) as loader:
        assert next(iter(loader))[0].shape == (8, 3, 32, 32)
    with pytest.raises(ValueError, match="DATA is a cache"):
        opener.open(Candidate(backend="torch"))
    with pytest.raises(ValueError, match="pass --cache"):
        LoaderOpener(settings(), PIPELINE, sources[0], None).open(candidate)
    spaces, left_out = spaces_of(settings(tune=False), opener)
    assert "torch" in left_out
    assert {(space.start.backend, space.start.cached) for space in spaces} == {("hdf5", True), ("dali", True)}
    assert all(not space.options for space in spaces)


def test_arrays_have_no_decoders_to_compare() -> None:
    pixels = open_source((np.zeros((20, 50, 40, 3), np.uint8), np.arange(20)))
    wanted = settings(backend="torch", tune=True)
    [[space], _] = spaces_of(wanted, LoaderOpener(wanted, PIPELINE, pixels, None))
    assert (space.start.decoder, "decoder" in space.options) == ("auto", False)


def test_without_dali_the_others_are_compared(sources: tuple[Source, Source], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise LoaderError("E-DEPENDENCY", "nvidia.dali cannot be imported")

    monkeypatch.setattr(module, "import_dali", missing)
    spaces, left_out = spaces_of(settings(tune=False), LoaderOpener(settings(), PIPELINE, *sources))
    assert [space.start.backend for space in spaces] == ["hdf5", "torch"]
    assert left_out == {"dali": "nvidia.dali cannot be imported"}


def test_a_trial_measures_the_additional_memory_of_a_candidate(sources: tuple[Source, Source]) -> None:
    """The slots of batches, 9.6 MB each, must not reuse freed memory; a slow thread fills only two."""
    wanted = settings(batch_size=16, size=224, dtype="float32", seconds=0.2)
    meter = TrialMeter(LoaderOpener(wanted, imagenet_train(224), *sources), wanted)
    candidate = Candidate(backend="hdf5", cached=True, options={"workers": 1, "prefetch": 6, "workers_are": "threads"})
    there, freed = np.ones(400 << 20, np.uint8), [b"1" * 100_000 for _ in range(2000)]
    last = b"1" * 100_000  # keeps the allocator from returning the memory before it
    del freed
    found = meter.measure(candidate)
    assert found.images_per_s > 0
    assert 9 < (found.memory_mb or 0) < 300
    assert there.all()
    assert last
    assert trial_seconds(4.0) == 1.0
    assert trial_seconds(1.0) == 0.625  # half a second beyond warm-up
    assert trial_seconds(0.1) == 0.1


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
def test_the_first_value_is_the_backends_default(cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "default_workers", lambda: cpus)
    monkeypatch.setattr("penstock.loaders.run.engine.options.default_workers", lambda: cpus)
    space = values_to_try("dali", BenchSettings())
    with create_loader(write_folder(tmp_path, 6), backend="dali", batch_size=2) as loader:
        about = loader.describe()
    assert {name: values[0] for name, values in space.items()} == {name: about[name] for name in space}
    assert {"workers", "readers", "prefetch"} == set(space)
    for values in space.values():
        assert len(set(values)) == len(values) > 1
        assert all(isinstance(value, int) and value >= 1 for value in values)


def test_fixed_and_unsearched_options_are_unchanged() -> None:
    assert set(values_to_try("dali", BenchSettings(workers=3))) == {"readers", "prefetch"}
    assert values_to_try("dali", BenchSettings(workers=0)) == {}
    assert set(values_to_try("torch", BenchSettings(workers=3))) == {"prefetch"}
    assert values_to_try("auto", BenchSettings()) == {}


def test_the_call_lists_options_that_differ_from_the_defaults() -> None:
    options = {"prefetch": 2, "hw_decoder_load": 0.8, "readers": 1, "device_memory_padding": None}
    assert non_default_options("dali", options) == {"hw_decoder_load": 0.8, "readers": 1}
    assert non_default_options("hdf5", {"workers": 2, "prefetch": 3, "workers_are": "threads"}) == {
        "workers_are": "threads"
    }
    assert non_default_options("torch", {}) == {}


def test_the_loaders_own_choices_are_kept_with_the_given_options() -> None:
    about = {"backend": "hdf5", "workers": 2, "prefetch": 3, "workers_are": "threads", "start_method": "forkserver"}
    assert all_options("hdf5", {"workers": 1, "prefetch": 6}, about) == {
        "workers": 1,
        "prefetch": 6,
        "workers_are": "threads",
    }
    assert all_options("dali", {"workers": 0}, {"readers": 0, "prefetch": 2}) == {"workers": 0, "prefetch": 2}
