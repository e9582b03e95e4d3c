"""The search for settings in one benchmark run: its backends, its time, and its part of the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

from penstock.bench.probe.ceilings.decode import DecodeCeilings
from penstock.bench.probe.search.backends import search_spaces, start_workers
from penstock.bench.probe.search.budgets import Budgets
from penstock.bench.probe.search.candidate import Candidate, LoaderOpener
from penstock.bench.probe.search.settings_sweep import SearchResult, SettingsSweep
from penstock.bench.probe.search.trials import Trial, TrialMeter
from penstock.bench.record.bench_record import Tried
from penstock.bench.record.clock import Stopwatch
from penstock.bench.record.settings import BenchSettings

MIN_GAIN = 1.03  # a smaller lead is noise


def search_settings(
    settings: BenchSettings,
    opener: LoaderOpener,
    ceilings: DecodeCeilings,
    progress: Callable[[int, int, str], None],
    measured: Callable[[str, Sequence[float]], None] = lambda what, rates: None,
) -> SearchResult:
    """Search as requested by `settings`.

    `progress(0, 0, what)` is called before each measurement, `measured(what, [images/s])` after it.

    Raises ValueError if nothing fits the budgets or can serve the data, LoaderError as opening a loader does.
    """
    watch = Stopwatch()

    def say(what: str) -> None:
        progress(0, 0, f"searching, {min(time_used(), 1):.0%}: {what}")

    def time_used() -> float:
        return watch.seconds / settings.search_seconds

    budgets = Budgets(max_cpu=settings.max_cpu, max_memory=settings.max_memory)
    meter = TrialMeter(opener, settings)

    def measure(candidate: Candidate) -> Trial:
        trial = meter.measure(candidate)
        measured(candidate.describe(), [trial.images_per_s])
        return trial

    search = SettingsSweep(measure, budgets, time_used, say)
    spaces, left_out = search_spaces(settings, opener, ceilings)
    if not spaces:
        reasons = "; ".join(f"{backend}: {why}" for backend, why in left_out.items())
        raise ValueError(f"no backend can serve this data here: {reasons}")
    found = search.run(spaces)
    tried = tuple(tried_candidate(log.candidate, log.result, log.why) for log in search.logs.values())
    notes = [f"backend {backend} was left out: {why}" for backend, why in left_out.items()]
    if settings.tunes and not any(space.options for space in spaces):
        notes.append(f"backend {settings.backend!r} has nothing to search with these settings")
    if found.untried:
        left = [f"{backend} ({', '.join(names)})" if names else backend for backend, names in found.untried.items()]
        notes.append(f"not tried in {settings.search_seconds:.0f} s (--tune-seconds): {'; '.join(left)}")
    return replace(found, tried=tried, notes=tuple(notes))


def given_settings(settings: BenchSettings, opener: LoaderOpener) -> SearchResult:
    """Return the given settings as the result of a search without trials."""
    chosen = Candidate(
        backend=settings.backend,
        decoder=settings.decoder,
        dtype=settings.dtype,
        cached=opener.has(cached=True),
        options={"workers": start_workers(settings)},
    )
    return SearchResult(chosen=chosen)


def final_choice(found: SearchResult, rates: Mapping[str, float]) -> tuple[Candidate, str]:
    """Return the chosen candidate, or one that was clearly faster in the final rounds, and a note in that case.

    rates: backend -> images/s in those rounds; other backends may be missing.
    """
    chosen = found.chosen
    best = max(found.all, key=lambda candidate: rates.get(candidate.backend, 0.0))
    lead = rates[best.backend] / max(rates[chosen.backend], 1e-9)
    if lead <= MIN_GAIN:
        return chosen, ""
    return best, (
        f"{best.describe()} is recommended: in the final rounds it had {lead:.2f} times the images/s of "
        f"{chosen.describe()}, the choice of the search"
    )


def tried_candidate(candidate: Candidate, trial: Trial | None, why: str = "") -> Tried:
    """Return the record of a candidate."""
    return Tried(
        name=candidate.describe(),
        backend=candidate.backend,
        decoder=candidate.decoder,
        cached=candidate.cached,
        options=dict(candidate.options),
        why=why,
        **(asdict(trial) if trial else {}),
    )
