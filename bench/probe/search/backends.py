"""The backends that can serve the data here, each with its search space."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from penstock.bench.probe.ceilings.decode import DecodeCeilings
from penstock.bench.probe.search.candidate import Candidate, LoaderOpener
from penstock.bench.probe.search.settings_sweep import SearchSpace
from penstock.bench.record.bench_record import KnobValue
from penstock.bench.record.settings import ALL_BACKENDS, BenchSettings
from penstock.loaders.dali.dali_engine import default_readers
from penstock.loaders.dali.dali_probe import REGIONS, WHOLE, working_way
from penstock.loaders.run.feed.copies import numbered
from penstock.loaders.system.machine import default_workers
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.sample.dali_graph import import_dali

Values = dict[str, tuple[KnobValue, ...]]

PREFETCH = (3, 1, 6)
_FEW = 8  # CPUs: with more, only some numbers of workers are tried
_LOOK_S = 0.4  # maximum seconds of a measurement of remote storage


def search_spaces(
    settings: BenchSettings, opener: LoaderOpener, ceilings: DecodeCeilings
) -> tuple[list[SearchSpace], dict[str, str]]:
    """Return the spaces of the settings' backend, or of all that can run; and backend -> reason of those left out."""
    spaces: list[SearchSpace] = []
    left_out: dict[str, str] = {}
    requests = _requests_to_try(settings, opener, ceilings)
    for backend, cached in available_backends(settings, opener, left_out):
        options, decoders = Values(), [settings.decoder]
        if settings.tunes:
            of_data: Values = {"requests": requests} if requests and not cached else {}
            options = of_data | values_to_try(backend, settings)
            if settings.decoder == "auto" and backend in ("torch", "hdf5"):
                names = ceilings.decoders(cached=cached)
                decoders = names if ceilings.of(names[0], cached=cached).decodes else decoders
        start = Candidate(
            backend=backend,
            decoder=decoders[0],
            dtype=settings.dtype,
            cached=cached,
            options={"workers": start_workers(settings), **{name: values[0] for name, values in options.items()}},
        )
        if len(decoders) > 1:
            options["decoder"] = tuple(decoders)
        spaces.append(SearchSpace(start=start, options=options, fixed_workers=settings.workers is not None))
    return spaces, left_out


def _requests_to_try(settings: BenchSettings, opener: LoaderOpener, ceilings: DecodeCeilings) -> tuple[int, ...]:
    """Return numbers of requests to compare if more than the loader's default are faster; else ()."""
    if not settings.tunes or "requests" in settings.data_options or not opener.has(cached=False):
        return ()
    store = ceilings.store(settings.batch_size, cached=False)
    if store is None or not store.gains_by_more(min(_LOOK_S, settings.seconds)):
        return ()
    assert store.more_requests is not None
    return store.requests, store.more_requests


def ways_to_decode(device: str) -> tuple[str, ...]:
    """Return the values of the dali backend's `decode` to compare on `device`; () if there is only one.

    The hardware decoder of some GPUs decodes only whole images. Regions are tried only where they are correct.
    """
    if device == "cpu":
        return ()
    return ("auto", WHOLE) if working_way(numbered(torch.device(device))).way == REGIONS else ()


def usable_cpus(settings: BenchSettings) -> int:
    """Return the number of CPUs that workers may use."""
    return default_workers() if settings.max_cpu is None else min(default_workers(), int(settings.max_cpu))


def start_workers(settings: BenchSettings) -> int:
    """Return the initial number of workers: the user's, or one per CPU."""
    return usable_cpus(settings) if settings.workers is None else settings.workers


def available_backends(
    settings: BenchSettings, opener: LoaderOpener, left_out: dict[str, str]
) -> Iterator[tuple[str, bool]]:
    """Yield (backend, whether it reads a cache) of the requested backends, the probably fastest first.

    left_out: receives the other backends with reasons.
    """
    cached = opener.has(cached=True)
    if settings.backend != ALL_BACKENDS:
        yield settings.backend, cached
        return
    if cached:
        yield "hdf5", True
    else:
        left_out["hdf5"] = "no cache given (--cache)"
    if opener.has(cached=False):
        yield "torch", False
    else:
        left_out["torch"] = "DATA is a cache; hdf5 reads it with the same workers"
    try:
        import_dali()
    except LoaderError as error:
        left_out["dali"] = error.cause
        return
    yield "dali", cached


def values_to_try(backend: str, settings: BenchSettings) -> Values:
    """Return option -> values to try, the backend's default first; {} for a backend that is not searched.

    A number of workers set by the user is not searched. Nor are the bytes ahead of remote data: more than the
    concurrent requests fetch gain nothing.
    """
    cpus = usable_cpus(settings)
    if backend == "dali":
        return _dali_values(settings.workers, cpus, settings.device)
    if backend not in ("torch", "hdf5"):
        return {}
    counts: Values = {"workers": _worker_counts(cpus)} if settings.workers is None else {}
    return {**counts, "prefetch": PREFETCH}


def _worker_counts(cpus: int) -> tuple[int, ...]:
    """Return one worker per CPU, then other counts worth comparing; with few CPUs they include all smaller ones."""
    others = (cpus + 1, cpus // 2, 2 * cpus, max(0, cpus - 1), cpus // 4, 0)
    return tuple(dict.fromkeys((cpus, *others, *(range(cpus) if cpus <= _FEW else ()))))


def _dali_values(fixed: int | None, cpus: int, device: str) -> Values:
    """Return values for DALI's threads, its readers and the batches ahead; for a GPU also for its decoder.

    On a CPU all threads share the CPUs: one extra thread fills the gaps, and with many CPUs the readers need some of
    them. On a GPU the decoder does most of the work, and fewer threads suffice.
    """
    workers, on_gpu = cpus if fixed is None else fixed, device != "cpu"
    readers = default_readers(workers)
    values: Values = {}
    if on_gpu:
        values["hw_decoder_load"] = (0.65, 0.5, 0.8, 0.95)
        values["decode"] = ways_to_decode(device)
    if fixed is None:
        others = (workers // 2, workers // 4) if on_gpu else (workers + 1, workers - readers)
        enough = (count for count in others if count >= 2)
        values["workers"] = tuple(dict.fromkeys((workers, *enough)))
    if workers:
        values["readers"] = tuple(dict.fromkeys((readers, 2 * readers, max(1, readers // 2))))
        values["prefetch"] = (2, 3)
    return {name: found for name, found in values.items() if len(found) > 1}
