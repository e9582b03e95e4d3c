"""Compares the search of settings with an exhaustive grid: `python tests/studies/search_against_grid.py DATA`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from penstock.bench.commands import shared_options as common
from penstock.bench.probe.ceilings.decode import DecodeCeilings, all_decoders
from penstock.bench.probe.data.training_folder import training_folder
from penstock.bench.probe.search.backends import PREFETCH, available_backends, start_workers, values_to_try
from penstock.bench.probe.search.candidate import BenchData, Candidate
from penstock.bench.probe.search.settings_search import search_settings
from penstock.bench.probe.search.settings_sweep import SearchResult
from penstock.bench.probe.search.trials import TrialMeter
from penstock.bench.record.clock import Stopwatch
from penstock.bench.record.environment import describe_environment
from penstock.bench.record.settings import BenchSettings, Cache
from penstock.loaders.system.json_file import write_json
from penstock.pipelines.errors import LoaderError

MIN_RATE, MAX_TIME = 0.95, 0.2  # required share of the grid's best rate, and allowed share of its time

OnProgress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Set how much is measured.

    Attributes:
        passes: passes over the grid.
        rounds: rounds of the last comparison.
        best: number of the grid's best settings that are compared with the search's choice.
    """

    passes: int
    rounds: int
    best: int


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """Hold the results of the study.

    Attributes:
        chosen: the search's choice.
        rates: setting -> images/s in alternating rounds, of the choice and of the grid's best.
        searched: results of the search.
        search_seconds, grid_seconds: how long the search and the grid took.
        grid: setting -> images/s in the grid, of all settings.
    """

    chosen: Candidate
    rates: dict[str, list[float]]
    searched: SearchResult
    search_seconds: float
    grid_seconds: float
    grid: dict[str, float]

    @property
    def rate_ratio(self) -> float:
        """Return the median images/s of the choice as a share of the best setting's."""
        medians = {name: statistics.median(found) for name, found in self.rates.items()}
        return medians[self.chosen.describe()] / max(medians.values())

    @property
    def time_ratio(self) -> float:
        """Return the search's seconds as a share of the grid's."""
        return self.search_seconds / self.grid_seconds

    @property
    def holds(self) -> bool:
        """Return whether the search meets its targets."""
        return self.rate_ratio >= MIN_RATE and self.time_ratio <= MAX_TIME


def grid_of(settings: BenchSettings, backends: Sequence[tuple[str, bool]], cpus: int) -> Iterator[Candidate]:
    """Yield every combination of backend, decoder, workers from 0 to twice `cpus`, prefetch and `workers_are`.

    backends: (name, whether it reads the cache).
    """
    for backend, cached in backends:
        own = backend in ("torch", "hdf5")  # DALI decodes itself
        for decoder, workers in product(all_decoders() if own else ["auto"], range(2 * cpus + 1)):
            options_of: dict[str, Sequence[Any]] = (
                {"prefetch": PREFETCH} if own else dict(values_to_try(backend, replace(settings, workers=workers)))
            )
            if backend == "hdf5":
                options_of["workers_are"] = ("threads", "processes")
            if not workers:  # without workers nothing is made ahead
                options_of = {}
            for values in product(*options_of.values()):
                options = {"workers": workers, **dict(zip(options_of, values, strict=True))}
                dtype = settings.dtype
                candidate = Candidate(backend=backend, decoder=decoder, dtype=dtype, cached=cached, options=options)
                yield _without_default(candidate)


def _without_default(candidate: Candidate) -> Candidate:
    """Return the candidate without `workers_are` if it is the default, which the search omits."""
    plain = replace(candidate, options={k: v for k, v in candidate.options.items() if k != "workers_are"})
    return plain if plain.has_processes == candidate.has_processes else candidate


def measure_grid(
    meter: TrialMeter, candidates: Sequence[Candidate], passes: int, progress: OnProgress
) -> dict[str, list[float]]:
    """Return candidate -> images/s of each pass, each in a different order, without those that cannot be opened."""
    rates: dict[str, list[float]] = {candidate.describe(): [] for candidate in candidates}
    for number in range(passes):
        order = np.random.default_rng(number).permutation(len(candidates))
        for done, candidate in enumerate(candidates[place] for place in order):
            progress(number * len(order) + done, passes * len(order), f"grid: {candidate.describe()}")
            rates[candidate.describe()] += _one(meter, candidate)
    return {name: found for name, found in rates.items() if found}


def _one(meter: TrialMeter, candidate: Candidate) -> list[float]:
    try:
        return [meter.measure(candidate).images_per_s]
    except LoaderError:
        return []


def run_study(data: BenchData, settings: BenchSettings, plan: Plan, progress: OnProgress) -> StudyResult:
    """Measure the grid, search, then measure the search's choice and the grid's best in alternation."""
    meter = TrialMeter(data.opener, settings)
    backends = list(available_backends(settings, data.opener, {}))
    candidates = list(grid_of(settings, backends, start_workers(settings)))
    watch = Stopwatch()
    rates = measure_grid(meter, candidates, plan.passes, progress)
    grid = {name: statistics.median(found) for name, found in rates.items()}
    grid_seconds = watch.seconds
    ceilings = DecodeCeilings(data.opener.source, data.pipeline, settings.seed)
    watch = Stopwatch()
    searched = search_settings(settings, data.opener, ceilings, progress)
    search_seconds, chosen, leaders = (
        watch.seconds,
        searched.chosen,
        sorted(grid, key=lambda name: -grid[name])[: plan.best],
    )
    by_name = {candidate.describe(): candidate for candidate in candidates}
    finalists = {chosen.describe(): chosen, **{name: by_name[name] for name in leaders}}
    last: dict[str, list[float]] = {name: [] for name in finalists}
    whole = TrialMeter(data.opener, replace(settings, seconds=4 * settings.seconds))
    for number in range(plan.rounds):
        for name in list(finalists)[:: 1 if number % 2 == 0 else -1]:
            progress(number, plan.rounds, f"final: {name}")
            last[name] += _one(whole, finalists[name])
    return StudyResult(
        chosen=chosen,
        rates=last,
        searched=searched,
        search_seconds=search_seconds,
        grid_seconds=grid_seconds,
        grid=grid,
    )


def main(
    data: common.Data,
    cache: Cache = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the record here.")] = None,
    entries: Annotated[int | None, typer.Option(min=1, help="Serve DATA as this number of images.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, float16, bfloat16, uint8.")] = "float32",
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of a whole measurement; four short ones.")] = 4.0,
    tune_seconds: Annotated[float, typer.Option(help="How long the search may take.")] = 60.0,
    passes: Annotated[int, typer.Option(min=1, help="Passes over the grid.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Alternating rounds of choice and grid's best.")] = 5,
    best: Annotated[int, typer.Option(min=1, help="Number of the grid's best to measure again.")] = 3,
) -> None:
    """Measure every setting, then search, then alternate the search's choice with the grid's best."""
    from rich import progress as rich
    from rich.console import Console

    settings = BenchSettings(
        cache=None if cache is None else str(cache),
        entries=entries,
        dtype=dtype,
        model=None,
        seconds=seconds,
        tune_seconds=tune_seconds,
    )
    with rich.Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("grid", total=None)

        def progress(done: int, total: int, what: str) -> None:
            shown.update(task, completed=done, total=total, description=what)

        found = BenchData(training_folder(data), settings)
        result = run_study(found, settings, Plan(passes=passes, rounds=rounds, best=best), progress)
    for name, rates in result.rates.items():
        print(f"{statistics.median(rates):8,.0f} images/s ({min(rates):,.0f} to {max(rates):,.0f})  {name}")
    print(f"search: {result.chosen.describe()}")
    print(f"rate: {result.rate_ratio:.3f} of the best (at least {MIN_RATE}); {len(result.grid)} settings in the grid")
    print(
        f"time: {result.search_seconds:.0f} s of the grid's {result.grid_seconds:.0f} s, {result.time_ratio:.2f} "
        f"(at most {MAX_TIME})"
    )
    if json_file:
        write_json(json_file, _record(settings, found, result))


def _record(settings: BenchSettings, data: BenchData, result: StudyResult) -> dict[str, Any]:
    return {
        "what": "search of settings against an exhaustive grid",
        "data": {"summary": data.source.describe(), "fingerprint": data.source.fingerprint},
        "settings": {
            "entries": settings.entries,
            "dtype": settings.dtype,
            "batch_size": settings.batch_size,
            "seconds": settings.seconds,
            "tune_seconds": settings.tune_seconds,
        },
        "environment": describe_environment(),
        "chosen": result.chosen.describe(),
        "rates": result.rates,
        "rate_ratio": result.rate_ratio,
        "search_seconds": result.search_seconds,
        "grid_seconds": result.grid_seconds,
        "time_ratio": result.time_ratio,
        "grid": dict(sorted(result.grid.items(), key=lambda item: -item[1])),
        "tried": {tried.name: tried.images_per_s or tried.why for tried in result.searched.tried},
    }


if __name__ == "__main__":
    typer.run(main)
