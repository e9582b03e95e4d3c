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

from penstock.bench.ceilings.decode import usable_decoders
from penstock.bench.commands import options as common
from penstock.bench.data.training_folder import training_folder
from penstock.bench.measure.clock import Stopwatch
from penstock.bench.measure.environment import describe_environment
from penstock.bench.record.record import BenchSettings
from penstock.bench.search.bench_data import BenchData
from penstock.bench.search.candidate import Candidate
from penstock.bench.search.search import Searched, search_settings
from penstock.bench.search.search_space import PREFETCH, knobs_of
from penstock.bench.search.starts import available_backends, start_workers
from penstock.bench.search.trial import Trials
from penstock.loaders.backends.hdf5_backend import KINDS
from penstock.loaders.system.json_file import write_json
from penstock.pipelines.errors import LoaderError

MIN_RATE, MAX_TIME = 0.95, 0.2  # of the grid's best and of its time: what the search is held to

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """passes: over the grid; rounds: of the last comparison, with so many of the grid's `best`."""

    passes: int
    rounds: int
    best: int


@dataclass(frozen=True, kw_only=True)
class Marked:
    """rates: images/s of the search's choice and of the grid's best, in alternating rounds; grid: of all, at first."""

    chosen: Candidate
    rates: dict[str, list[float]]
    searched: Searched
    grid_seconds: float
    grid: dict[str, float]

    @property
    def rate_ratio(self) -> float:
        """Of the median images/s of the choice to that of the best of the grid's."""
        medians = {name: statistics.median(found) for name, found in self.rates.items()}
        return medians[self.chosen.describe()] / max(medians.values())

    @property
    def time_ratio(self) -> float:
        """Of the search's seconds to the grid's."""
        return self.searched.seconds / self.grid_seconds

    @property
    def holds(self) -> bool:
        """Whether the search does what it is held to."""
        return self.rate_ratio >= MIN_RATE and self.time_ratio <= MAX_TIME


def grid_of(settings: BenchSettings, backends: Sequence[tuple[str, bool]], cpus: int) -> Iterator[Candidate]:
    """Every combination of backend, decoder, workers from 0 to twice `cpus`, prefetch, and what the workers are.

    backends: (name, whether it reads the cache).
    """
    for backend, cached in backends:
        own = backend in ("torch", "hdf5")  # DALI decodes by itself
        for decoder, workers in product(usable_decoders() if own else ["auto"], range(2 * cpus + 1)):
            knobs: dict[str, Sequence[Any]] = {"prefetch": PREFETCH} if own else dict(knobs_of(backend, "cpu", workers))
            if backend == "hdf5":
                knobs["workers_are"] = KINDS
            if not workers:  # nobody works ahead
                knobs = {}
            for values in product(*knobs.values()):
                options = {"workers": workers, **dict(zip(knobs, values, strict=True))}
                dtype = settings.dtype
                yield Candidate(backend=backend, decoder=decoder, dtype=dtype, cached=cached, options=options)


def measure_grid(
    trials: Trials, candidates: Sequence[Candidate], passes: int, progress: Progress
) -> dict[str, list[float]]:
    """Candidate -> images/s of each pass, each in an order of its own; one that cannot be opened is left out."""
    rates: dict[str, list[float]] = {candidate.describe(): [] for candidate in candidates}
    for number in range(passes):
        order = np.random.default_rng(number).permutation(len(candidates))
        for done, candidate in enumerate(candidates[place] for place in order):
            progress(number * len(order) + done, passes * len(order), f"grid: {candidate.describe()}")
            rates[candidate.describe()] += _one(trials, candidate)
    return {name: found for name, found in rates.items() if found}


def _one(trials: Trials, candidate: Candidate) -> list[float]:
    try:
        with trials.opened(candidate) as measure:
            return [measure().images_per_s]
    except LoaderError:
        return []


def mark(data: BenchData, settings: BenchSettings, plan: Plan, progress: Progress) -> Marked:
    """The grid, the search, then the search's choice and the grid's best in turn."""
    trials = Trials(data.opener, settings)
    backends = list(available_backends(settings, data.opener, {}))
    candidates = list(grid_of(settings, backends, start_workers(settings)))
    watch = Stopwatch()
    rates = measure_grid(trials, candidates, plan.passes, progress)
    grid = {name: statistics.median(found) for name, found in rates.items()}
    grid_seconds = watch.seconds
    found = search_settings(settings, data.opener, data.pipeline, progress)
    chosen, leaders = found.surveyed.chosen, sorted(grid, key=lambda name: -grid[name])[: plan.best]
    by_name = {candidate.describe(): candidate for candidate in candidates}
    finalists = {chosen.describe(): chosen, **{name: by_name[name] for name in leaders}}
    last: dict[str, list[float]] = {name: [] for name in finalists}
    whole = Trials(data.opener, replace(settings, seconds=4 * settings.seconds))
    for number in range(plan.rounds):
        for name in list(finalists)[:: 1 if number % 2 == 0 else -1]:
            progress(number, plan.rounds, f"final: {name}")
            last[name] += _one(whole, finalists[name])
    return Marked(chosen=chosen, rates=last, searched=found, grid_seconds=grid_seconds, grid=grid)


def main(
    data: common.Data,
    cache: common.Cache = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the record here.")] = None,
    entries: Annotated[int | None, typer.Option(min=1, help="Serve DATA as so many images.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, float16, bfloat16, uint8.")] = "float32",
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of a whole measurement; four short ones.")] = 4.0,
    tune_seconds: Annotated[float, typer.Option(help="How long the search may take.")] = 60.0,
    passes: Annotated[int, typer.Option(min=1, help="Over the grid.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Of choice and grid's best, alternating.")] = 5,
    best: Annotated[int, typer.Option(min=1, help="How many of the grid's best are measured again.")] = 3,
) -> None:
    """Measure every setting, then search, then compare the search's choice with the grid's best in turn."""
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
        marked = mark(found, settings, Plan(passes=passes, rounds=rounds, best=best), progress)
    for name, rates in marked.rates.items():
        print(f"{statistics.median(rates):8,.0f} images/s ({min(rates):,.0f} to {max(rates):,.0f})  {name}")
    print(f"search: {marked.chosen.describe()}")
    print(f"rate: {marked.rate_ratio:.3f} of the best (at least {MIN_RATE}); {len(marked.grid)} settings in the grid")
    print(
        f"time: {marked.searched.seconds:.0f} s of the grid's {marked.grid_seconds:.0f} s, {marked.time_ratio:.2f} "
        f"(at most {MAX_TIME})"
    )
    if json_file:
        write_json(json_file, _record(settings, found, marked))


def _record(settings: BenchSettings, data: BenchData, marked: Marked) -> dict[str, Any]:
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
        "chosen": marked.chosen.describe(),
        "rates": marked.rates,
        "rate_ratio": marked.rate_ratio,
        "search_seconds": marked.searched.seconds,
        "grid_seconds": marked.grid_seconds,
        "time_ratio": marked.time_ratio,
        "grid": dict(sorted(marked.grid.items(), key=lambda item: -item[1])),
        "tried": {tried.name: tried.images_per_s or tried.why for tried in marked.searched.tried},
    }


if __name__ == "__main__":
    typer.run(main)
