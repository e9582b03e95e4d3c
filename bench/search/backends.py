"""The backends that can serve the data here, each with what to search of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock.bench.ceilings.decode import DecodeCeilings
from penstock.bench.record.bench_record import ALL_BACKENDS, BenchSettings, decode_name
from penstock.bench.search.candidate import Candidate, LoaderOpener
from penstock.bench.search.search_space import ImageSize, SearchSpace, Values, values_to_try
from penstock.bench.search.trials import mean_rate
from penstock.loaders.system.machine import default_workers
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.sample.dali_graph import import_dali

_CLOSE = 0.9  # of the best decoder's ceiling: another may be as fast in a loader
_HOPELESS = 0.75  # of the best decoder's ceiling after one measurement: a second one is not worth the time
_SECONDS, _SHARE = 0.4, 0.01  # of a decoder's measurement: at most, and of the search's time


@dataclass(kw_only=True)
class SearchSpaces:
    """Hold what is searched, and what is left out.

    Attributes:
        spaces: of the backends that can run.
        backends: backend that is left out -> why.
        decoders: description of a candidate whose decoder is left out -> (candidate, why).
    """

    spaces: list[SearchSpace] = field(default_factory=list)
    backends: dict[str, str] = field(default_factory=dict)
    decoders: dict[str, tuple[Candidate, str]] = field(default_factory=dict)


def search_spaces(
    settings: BenchSettings,
    opener: LoaderOpener,
    ceilings: DecodeCeilings,
    largest: ImageSize | None = None,
    out_of_time: Callable[[], bool] = lambda: False,
    measured: Callable[[str, Sequence[float]], None] = lambda what, rates: None,
) -> SearchSpaces:
    """Return the spaces of the settings' backend, or of all that can run.

    largest: size of the largest image. out_of_time(): asked before each measurement of a decoder; measured(what,
    [images/s]): called after it. Raises LoaderError where no decoder works.
    """
    result = SearchSpaces()
    requests = _requests_to_try(settings, opener, ceilings)
    ranked: dict[bool, dict[str, float]] = {}
    for backend, cached in available_backends(settings, opener, result.backends):
        options: Values = {}
        decoders = {settings.decoder: 1.0}
        if settings.tunes:
            options = values_to_try(
                backend,
                settings.device,
                settings.workers,
                largest,
                cpus=usable_cpus(settings),
                requests=() if cached else requests,
            )
        if settings.tunes and settings.decoder == "auto" and backend in ("torch", "hdf5"):
            if cached not in ranked:
                ranked[cached] = _decoder_shares(settings, ceilings, cached, out_of_time, measured)
            decoders = ranked[cached]
        close = tuple(name for name, share in decoders.items() if share >= _CLOSE)
        default = ceilings.decoders(cached=cached)[:1]
        close = tuple(sorted(close, key=lambda name: name not in default))  # the others have to be faster in a loader
        start = _start_candidate(settings, backend, cached, close[0], options)
        if len(close) > 1:
            options = {**options, "decoder": close}
        for name in [name for name in decoders if name not in close]:
            why = f"its ceiling is {decoders[name]:.2f} of that of {next(iter(decoders))}: not tried"
            why = why if decoders[name] else "there was no time to measure its ceiling: not tried"
            result.decoders[f"{backend}, {name}"] = (start.with_option("decoder", name), why)
        result.spaces.append(SearchSpace(start=start, options=options, fixed_workers=settings.workers is not None))
    return result


def _requests_to_try(settings: BenchSettings, opener: LoaderOpener, ceilings: DecodeCeilings) -> tuple[int, ...]:
    """Return numbers of requests to compare, where more than the loader makes bring more; else nothing."""
    if not settings.tunes or "requests" in settings.data_options or not opener.has(cached=False):
        return ()
    store = ceilings.store(settings.batch_size, cached=False)
    if store is None or not store.gains_by_more(min(_SECONDS, settings.seconds)):
        return ()
    assert store.more_requests is not None
    return store.requests, store.more_requests


def first_candidate(settings: BenchSettings, opener: LoaderOpener, ceilings: DecodeCeilings) -> Candidate | None:
    """Return what to measure before the decoders are compared: the likely start, which has the default one.

    None where nothing has to be compared. Raises LoaderError where the decoder decodes nothing.
    """
    backend, cached = next(available_backends(settings, opener, {}), ("", False))
    if not settings.tunes or settings.decoder != "auto" or backend not in ("torch", "hdf5"):
        return None
    decoder = ceilings.decoders(cached=cached)[0]
    if not ceilings.of(decoder, cached=cached).decodes:
        return None
    options = values_to_try(backend, settings.device, settings.workers, cpus=usable_cpus(settings))
    return _start_candidate(settings, backend, cached, decoder, options)


def _start_candidate(settings: BenchSettings, backend: str, cached: bool, decoder: str, options: Values) -> Candidate:
    first = {name: values[0] for name, values in options.items()}
    return Candidate(
        backend=backend,
        decoder=decoder,
        dtype=settings.dtype,
        cached=cached,
        options={"workers": start_workers(settings), **first},
    )


def usable_cpus(settings: BenchSettings) -> int:
    """Return the number of CPUs that workers may fill."""
    return default_workers() if settings.max_cpu is None else min(default_workers(), int(settings.max_cpu))


def start_workers(settings: BenchSettings) -> int:
    """Return the number of workers to begin with: as the user said, or one a CPU."""
    return usable_cpus(settings) if settings.workers is None else settings.workers


def available_backends(
    settings: BenchSettings, opener: LoaderOpener, left_out: dict[str, str]
) -> Iterator[tuple[str, bool]]:
    """Yield (backend, whether it reads a cache) of those asked for, the one that is likely to be the fastest first.

    left_out: receives the others, and why.
    """
    cached = opener.has(cached=True)
    if settings.backend != ALL_BACKENDS:
        yield settings.backend, cached
        return
    if cached:
        yield "hdf5", True
    else:
        left_out["hdf5"] = "there is no cache (--cache)"
    if opener.has(cached=False):
        yield "torch", False
    else:
        left_out["torch"] = "DATA is a cache, which hdf5 reads with the same workers"
    try:
        import_dali()
    except LoaderError as error:
        left_out["dali"] = error.cause
        return
    yield "dali", cached


def _decoder_shares(
    settings: BenchSettings,
    ceilings: DecodeCeilings,
    cached: bool,
    out_of_time: Callable[[], bool],
    measured: Callable[[str, Sequence[float]], None],
) -> dict[str, float]:
    """Return decoder -> its images/s on one thread as a share of the best one's, the best one first.

    0 for a decoder that there was no time to measure; {"auto": 1} for arrays, which need none.
    """
    names, seconds = ceilings.decoders(cached=cached), min(_SECONDS, settings.seconds, _SHARE * settings.search_seconds)
    read = "cache" if cached else "files"
    rates: dict[str, list[float]] = {name: [] for name in names}
    for turn in (names, names[::-1]):
        best = max((statistics.fmean(found) for found in rates.values() if found), default=0.0)
        for name in turn:
            if out_of_time() or (rates[name] and rates[name][0] < _HOPELESS * best):
                continue
            ceiling = ceilings.of(name, cached=cached)
            if not ceiling.decodes:
                return {"auto": 1.0}
            rates[name].append(mean_rate(ceiling.measure(seconds)))
            measured(f"{decode_name(name)}, of the {read}", rates[name])
    means = {name: statistics.fmean(found) if found else 0.0 for name, found in rates.items()}
    best = max(means.values())
    if not best:
        return {name: float(name == names[0]) for name in names}
    return {name: means[name] / best for name in sorted(names, key=lambda name: -means[name])}
