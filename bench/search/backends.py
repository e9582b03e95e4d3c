"""The backends that can serve the data here, each with what to search of it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from penstock.bench.ceilings.decode import DecodeCeilings
from penstock.bench.record.bench_record import ALL_BACKENDS, BenchSettings
from penstock.bench.search.candidate import Candidate, LoaderOpener
from penstock.bench.search.search_space import SearchSpace, Values, values_to_try
from penstock.loaders.dali.dali_probe import REGIONS, WHOLE, working_way
from penstock.loaders.feed.copies import numbered
from penstock.loaders.system.machine import default_workers
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.sample.dali_graph import import_dali

_LOOK_S = 0.4  # of a measurement of remote storage, at most


def search_spaces(
    settings: BenchSettings, opener: LoaderOpener, ceilings: DecodeCeilings
) -> tuple[list[SearchSpace], dict[str, str]]:
    """Return the spaces of the settings' backend, or of all that can run; and backend -> why of those left out."""
    spaces: list[SearchSpace] = []
    left_out: dict[str, str] = {}
    requests = _requests_to_try(settings, opener, ceilings)
    for backend, cached in available_backends(settings, opener, left_out):
        options, decoders = Values(), [settings.decoder]
        if settings.tunes:
            cpus, of_data = usable_cpus(settings), () if cached else requests
            ways = ways_to_decode(settings.device) if backend == "dali" else ()
            options = values_to_try(
                backend, settings.device, settings.workers, cpus=cpus, requests=of_data, decode=ways
            )
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
    """Return numbers of requests to compare, where more than the loader makes bring more; else nothing."""
    if not settings.tunes or "requests" in settings.data_options or not opener.has(cached=False):
        return ()
    store = ceilings.store(settings.batch_size, cached=False)
    if store is None or not store.gains_by_more(min(_LOOK_S, settings.seconds)):
        return ()
    assert store.more_requests is not None
    return store.requests, store.more_requests


def ways_to_decode(device: str) -> tuple[str, ...]:
    """Return the values of the dali backend's `decode` to compare on `device`; none where there is no choice.

    Some GPUs have a hardware decoder that takes whole images alone. Regions are tried only where they are right.
    """
    if device == "cpu":
        return ()
    return ("auto", WHOLE) if working_way(numbered(torch.device(device))).way == REGIONS else ()


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
