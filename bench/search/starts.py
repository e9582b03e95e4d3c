"""The backends that can serve the data here, each with the candidate to begin with and the knobs to search."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from penstock.bench.ceilings.decode import DecodeCeiling, usable_decoders
from penstock.bench.record.record import ALL_BACKENDS, BenchSettings
from penstock.bench.search.backends import Entrant
from penstock.bench.search.candidate import Candidate, LoaderOpener
from penstock.bench.search.search_space import Largest, Values, knobs_of
from penstock.bench.search.trial import mean_rate
from penstock.loaders.sources.contract import Source
from penstock.loaders.system.machine import default_workers
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.sample.dali_graph import import_dali
from penstock.pipelines.spec import ImagePipeline

_CLOSE = 0.9  # of the best decoder's ceiling: another may be as fast in a loader
_HOPELESS = 0.75  # after one measurement
_SAMPLES = 64  # images: an epoch of them is soon over
_SECONDS = 0.4


@dataclass(kw_only=True)
class Entrants:
    """What enters the search: found, and who is left out: `backends` name -> why, `decoders` candidate -> why."""

    found: list[Entrant] = field(default_factory=list)
    backends: dict[str, str] = field(default_factory=dict)
    decoders: dict[str, tuple[Candidate, str]] = field(default_factory=dict)


def entrants(
    settings: BenchSettings,
    opener: LoaderOpener,
    pipeline: ImagePipeline,
    largest: Largest | None = None,
    out_of_time: Callable[[], bool] = lambda: False,
) -> Entrants:
    """Those of the settings' backend, or of all that can run. Raises LoaderError where no decoder works.

    largest: the largest image in pixels. out_of_time(): asked before each measurement of a decoder.
    """
    result = Entrants()
    ranked: dict[bool, dict[str, float]] = {}
    for backend, cached in available_backends(settings, opener, result.backends):
        space: Values = {}
        decoders = {settings.decoder: 1.0}
        if settings.tunes:
            space = knobs_of(backend, settings.device, settings.workers, largest, cpus=cpus_of(settings))
        if settings.tunes and settings.decoder == "auto" and backend in ("torch", "hdf5"):
            if cached not in ranked:
                ranked[cached] = _decoder_shares(settings, opener.source(cached=cached), pipeline, out_of_time)
            decoders = ranked[cached]
        start = Candidate(
            backend=backend,
            decoder=next(iter(decoders)),
            dtype=settings.dtype,
            cached=cached,
            options={"workers": start_workers(settings), **{knob: values[0] for knob, values in space.items()}},
        )
        close = tuple(name for name, share in decoders.items() if share >= _CLOSE)
        if len(close) > 1:  # before what matters less, should the time run out
            space = {**{knob: space.pop(knob) for knob in ("workers",) if knob in space}, "decoder": close, **space}
        for name in [name for name in decoders if name not in close]:
            why = f"its ceiling is {decoders[name]:.2f} of that of {start.decoder}: not tried"
            why = why if decoders[name] else "there was no time to measure its ceiling: not tried"
            result.decoders[f"{backend}, {name}"] = (start.with_knob("decoder", name), why)
        result.found.append(Entrant(start=start, space=space, fixed_workers=settings.workers is not None))
    return result


def cpus_of(settings: BenchSettings) -> int:
    """Processors that workers may fill."""
    return default_workers() if settings.max_cpu is None else min(default_workers(), int(settings.max_cpu))


def start_workers(settings: BenchSettings) -> int:
    """As the user said, or one a processor."""
    return cpus_of(settings) if settings.workers is None else settings.workers


def available_backends(
    settings: BenchSettings, opener: LoaderOpener, left_out: dict[str, str]
) -> Iterator[tuple[str, bool]]:
    """(backend, whether it reads a cache) of those asked for, what is likely to be the fastest first.

    left_out: takes the others, and why.
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
    settings: BenchSettings, source: Source, pipeline: ImagePipeline, out_of_time: Callable[[], bool]
) -> dict[str, float]:
    """Decoder -> its images/s on one thread, as a share of the best's, which comes first; 0 if there was no time to
    measure it; {"auto": 1} of arrays.
    """
    names, seconds = usable_decoders(), min(_SECONDS, settings.seconds)
    ceilings: dict[str, DecodeCeiling] = {}
    rates: dict[str, list[float]] = {name: [] for name in names}
    for turn in (names, names[::-1]):
        best = max((statistics.fmean(found) for found in rates.values() if found), default=0.0)
        for name in turn:
            if out_of_time() or (rates[name] and rates[name][0] < _HOPELESS * best):
                continue
            if name not in ceilings:
                ceilings[name] = DecodeCeiling(source, pipeline, name, settings.seed, max_samples=_SAMPLES)
            if not ceilings[name].decodes:
                return {"auto": 1.0}
            rates[name].append(mean_rate(ceilings[name].measure(seconds)))
    means = {name: statistics.fmean(found) if found else 0.0 for name, found in rates.items()}
    best = max(means.values())
    if not best:
        return {name: float(name == names[0]) for name in names}
    return {name: means[name] / best for name in sorted(names, key=lambda name: -means[name])}
