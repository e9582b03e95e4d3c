"""Which backends and decoders enter the search, with which settings, and how a candidate is opened and measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from photo_folder import write_folder

from penstock.bench.ceilings.decode import DecodeCeiling, DecodeCeilings
from penstock.bench.measure.clock import Rate
from penstock.bench.record.bench_record import BenchSettings
from penstock.bench.search import backends as module
from penstock.bench.search import candidate as candidate_module
from penstock.bench.search.backends import SearchSpaces, search_spaces
from penstock.bench.search.candidate import Candidate, LoaderOpener
from penstock.bench.search.trials import TrialMeter, trial_seconds
from penstock.loaders import create_loader, open_source
from penstock.loaders.sources.contract import Source
from penstock.pipelines import LoaderError, imagenet_train

PIPELINE = imagenet_train(32)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, Source]:
    """A folder of images, and its cache."""
    photos = write_folder(tmp_path_factory.mktemp("photos"), 16)
    cache = tmp_path_factory.mktemp("cache") / "photos.h5"
    with create_loader(photos, backend="hdf5", cache=cache, batch_size=8, workers=0):
        return open_source(photos), open_source(cache)


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Decoder -> images/s of its ceiling, and two processors."""
    told = {"simplejpeg": 1000.0, "turbojpeg": 960.0, "pillow": 500.0}
    monkeypatch.setattr(DecodeCeilings, "decoders", lambda ceilings, *, cached: list(told))
    monkeypatch.setattr(candidate_module, "native_library", lambda: None)
    monkeypatch.setattr(module, "default_workers", lambda: 2)

    def measure(ceiling: DecodeCeiling, seconds: float) -> Rate:
        return Rate.from_steps([round(told[ceiling.name])], [1.0])

    monkeypatch.setattr(DecodeCeiling, "measure", measure)
    monkeypatch.setattr(DecodeCeiling, "name", property(lambda ceiling: ceiling.said), raising=False)
    monkeypatch.setattr(DecodeCeiling, "__init__", lambda ceiling, *a, **_: setattr(ceiling, "said", a[2]))
    monkeypatch.setattr(DecodeCeiling, "decodes", True)
    monkeypatch.setattr(DecodeCeiling, "loaded", [], raising=False)
    return told


def settings(**more: object) -> BenchSettings:
    return BenchSettings(**{"batch_size": 8, "size": 32, "dtype": "uint8", **more})  # type: ignore[arg-type]


def spaces_of(wanted: BenchSettings, opener: LoaderOpener, *more: Any) -> SearchSpaces:
    return search_spaces(wanted, opener, DecodeCeilings(opener.source, PIPELINE, 0), *more)


def test_all_that_can_run_enter_each_on_what_it_reads(sources: tuple[Source, Source], rates: dict[str, float]) -> None:
    files, cache = sources
    found = spaces_of(settings(), LoaderOpener(settings(), PIPELINE, files, cache))
    starts = {space.start.backend: space.start for space in found.spaces}
    assert list(starts) == ["hdf5", "torch", "dali"]
    assert starts["hdf5"].describe() == ("hdf5 of the cache, simplejpeg, workers 2, prefetch 3")
    assert starts["torch"].describe() == "torch of the files, simplejpeg, workers 2, prefetch 3"
    assert starts["dali"].describe() == "dali of the cache, workers 2, readers 1, prefetch 2"
    spaces = {space.start.backend: list(space.options) for space in found.spaces}
    assert spaces["hdf5"] == ["workers", "prefetch", "decoder"]
    assert "decoder" not in spaces["dali"]
    assert found.backends == {}
    without = spaces_of(settings(), LoaderOpener(settings(), PIPELINE, files, None))
    assert [space.start.backend for space in without.spaces] == ["torch", "dali"]
    assert without.backends == {"hdf5": "there is no cache (--cache)"}


def test_a_decoder_is_tried_only_where_its_ceiling_is_close_to_the_best(
    sources: tuple[Source, Source], rates: dict[str, float]
) -> None:
    opener = LoaderOpener(settings(backend="torch", tune=True), PIPELINE, sources[0], None)
    [space] = spaces_of(settings(backend="torch", tune=True), opener).spaces
    assert space.options["decoder"] == ("simplejpeg", "turbojpeg")
    rates["turbojpeg"], rates["simplejpeg"] = 1500.0, 1000.0
    found = spaces_of(settings(backend="torch", tune=True), opener)
    assert found.spaces[0].start.decoder == "turbojpeg"
    assert "decoder" not in found.spaces[0].options
    told = {candidate.decoder: why for candidate, why in found.decoders.values()}
    assert told == {
        "simplejpeg": "its ceiling is 0.67 of that of turbojpeg: not tried",
        "pillow": "its ceiling is 0.33 of that of turbojpeg: not tried",
    }
    wanted = settings(backend="torch", tune=True, decoder="pillow")
    [fixed_space] = spaces_of(wanted, opener).spaces
    assert (fixed_space.start.decoder, "decoder" in fixed_space.options) == ("pillow", False)


def test_the_default_decoder_is_measured_first_and_stays_the_start_if_it_is_close(
    sources: tuple[Source, Source], rates: dict[str, float]
) -> None:
    rates["turbojpeg"] = 1050.0
    wanted = settings()
    opener = LoaderOpener(wanted, PIPELINE, *sources)
    ceilings, said = DecodeCeilings(opener.source, PIPELINE, 0), []
    first = module.first_candidate(wanted, opener, ceilings)
    found = search_spaces(wanted, opener, ceilings, measured=lambda what, rates: said.append((what, *rates)))
    assert first == found.spaces[0].start
    assert found.spaces[0].options["decoder"] == ("simplejpeg", "turbojpeg")
    assert said[0] == ("decode + resize, simplejpeg, one thread, of the cache", 1000.0)
    assert len(said) == 2 * (2 + 2 + 1)  # of cache and files: twice what is close, pillow once
    for other in (settings(tune=False), settings(decoder="pillow")):
        assert module.first_candidate(other, opener, ceilings) is None


def test_the_time_may_end_before_the_decoders_are_compared(
    sources: tuple[Source, Source], rates: dict[str, float]
) -> None:
    wanted = settings(backend="torch", tune=True)
    for limit, first in ((0, "simplejpeg"), (1, "simplejpeg"), (2, "turbojpeg")):
        rates["turbojpeg"] = 1500.0
        asked = iter(range(100))
        opener = LoaderOpener(wanted, PIPELINE, sources[0], None)
        found = spaces_of(wanted, opener, None, lambda: next(asked) >= limit)  # noqa: B023
        assert found.spaces[0].start.decoder == first
        whys = {candidate.decoder: why for candidate, why in found.decoders.values()}
        assert whys["pillow"] == "there was no time to measure its ceiling: not tried"


@pytest.mark.parametrize(("max_cpu", "workers"), [(None, 2), (1.9, 1), (0.5, 0), (64, 2)])
def test_the_search_begins_with_as_many_workers_as_may_be_busy(
    sources: tuple[Source, Source], rates: dict[str, float], max_cpu: float | None, workers: int
) -> None:
    wanted = settings(backend="hdf5", max_cpu=max_cpu, tune=True)
    [space] = spaces_of(wanted, LoaderOpener(wanted, PIPELINE, *sources)).spaces
    assert (space.start.workers, space.fixed_workers) == (workers, False)
    fixed = settings(backend="hdf5", max_cpu=max_cpu, workers=3)
    [space] = spaces_of(fixed, LoaderOpener(fixed, PIPELINE, *sources)).spaces
    assert (space.start.workers, space.fixed_workers, "workers" in space.options) == (3, True, False)


def test_data_that_are_a_cache_are_called_so(sources: tuple[Source, Source]) -> None:
    opener = LoaderOpener(settings(), PIPELINE, sources[1], None)
    assert (opener.has(cached=True), opener.has(cached=False)) == (True, False)
    candidate = Candidate(backend="hdf5", dtype="uint8", cached=True, options={"workers": 0, "workers_are": "threads"})
    with opener.open(candidate) as loader:
        assert next(iter(loader))[0].shape == (8, 3, 32, 32)
    with pytest.raises(ValueError, match="DATA is a cache"):
        opener.open(Candidate(backend="torch"))
    with pytest.raises(ValueError, match="pass --cache"):
        LoaderOpener(settings(), PIPELINE, sources[0], None).open(candidate)
    found = spaces_of(settings(tune=False), opener)
    assert "torch" in found.backends
    assert {(space.start.backend, space.start.cached) for space in found.spaces} == {
        ("hdf5", True),
        ("dali", True),
    }
    assert all(not space.options for space in found.spaces)


def test_arrays_have_no_decoders_to_compare() -> None:
    pixels = open_source((np.zeros((20, 50, 40, 3), np.uint8), np.arange(20)))
    wanted = settings(backend="torch", tune=True)
    [space] = spaces_of(wanted, LoaderOpener(wanted, PIPELINE, pixels, None)).spaces
    assert (space.start.decoder, "decoder" in space.options) == ("auto", False)


def test_without_dali_the_others_are_compared(sources: tuple[Source, Source], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise LoaderError("E-DEPENDENCY", "nvidia.dali cannot be imported")

    monkeypatch.setattr(module, "import_dali", missing)
    found = spaces_of(settings(tune=False), LoaderOpener(settings(), PIPELINE, *sources))
    assert [space.start.backend for space in found.spaces] == ["hdf5", "torch"]
    assert found.backends == {"dali": "nvidia.dali cannot be imported"}


def test_a_trial_tells_what_the_candidate_takes_beyond_what_there_was(
    sources: tuple[Source, Source],
) -> None:
    """The slots of batches, 9.6 MB each, must not lie in what others have let go of; a slow thread fills but two."""
    wanted = settings(batch_size=16, size=224, dtype="float32", seconds=0.2)
    meter = TrialMeter(LoaderOpener(wanted, imagenet_train(224), *sources), wanted)
    candidate = Candidate(backend="hdf5", cached=True, options={"workers": 1, "prefetch": 6, "workers_are": "threads"})
    there, freed = np.ones(400 << 20, np.uint8), [b"1" * 100_000 for _ in range(2000)]
    last = b"1" * 100_000  # keeps the allocator from giving back by itself what lies before it
    del freed
    found = meter.measure(candidate)
    assert found.images_per_s > 0
    assert 9 < (found.memory_mb or 0) < 300
    assert there.all()
    assert last
    assert trial_seconds(4.0) == 1.0
    assert trial_seconds(1.0) == 0.625  # half a second beyond warm-up
    assert trial_seconds(0.1) == 0.1
