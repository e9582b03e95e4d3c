"""The search of settings for one run: which backends take part, for how long, and what is told of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.bench.ceilings.decode import DecodeCeiling, usable_decoders
from penstock.bench.measure.clock import Stopwatch
from penstock.bench.record.record import BenchSettings, Tried
from penstock.bench.search.backends import Survey, Surveyed
from penstock.bench.search.budgets import Budgets
from penstock.bench.search.candidate import Candidate, LoaderOpener
from penstock.bench.search.starts import Entrants, entrants
from penstock.bench.search.trial import Trials
from penstock.bench.search.tuning import MIN_GAIN, Rules, Trial
from penstock.pipelines.spec import ImagePipeline


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What was found, every candidate that was looked at, notes for people, and the seconds that it took."""

    surveyed: Surveyed
    tried: tuple[Tried, ...]
    notes: tuple[str, ...]
    seconds: float


def search_settings(
    settings: BenchSettings,
    opener: LoaderOpener,
    pipeline: ImagePipeline,
    progress: Callable[[int, int, str], None],
) -> Searched:
    """The search that `settings` ask for; `progress(seconds, of seconds, what)` is called before each
    measurement.

    Raises ValueError if nothing fits the budgets or can serve the data, LoaderError as opening a loader does.
    """
    watch = Stopwatch()

    def say(what: str) -> None:
        whole = math.ceil(settings.tune_seconds)
        progress(min(int(watch.seconds), whole), whole, f"searching: {what}")

    def out_of_time() -> bool:
        return watch.seconds >= settings.tune_seconds

    say("decoders")
    found = entrants(settings, opener, pipeline, _largest(settings, opener, pipeline), out_of_time)
    if not found.found:
        raise ValueError("no backend can serve these data here: " + _told(found))
    budgets = Budgets(max_cpu=settings.max_cpu, max_memory=settings.max_memory)
    rules = Rules(
        opened=Trials(opener, settings).opened,
        name=Candidate.describe,
        refuses=budgets.refuses,
        out_of_time=out_of_time,
        say=say,
    )
    surveyed = Survey(rules, budgets).run(found.found)
    tried = [tried_as(attempt.contestant, attempt.trial, attempt.why) for attempt in rules.attempts.values()]
    tried += [tried_as(candidate, None, why) for candidate, why in found.decoders.values()]
    return Searched(
        surveyed=surveyed, tried=tuple(tried), notes=_notes(settings, found, surveyed), seconds=watch.seconds
    )


def confirmed(surveyed: Surveyed, rates: Mapping[str, float]) -> tuple[Candidate, str]:
    """The chosen candidate, or another backend's if that was clearly faster in the final rounds, and what to say then.

    rates: backend -> images/s in those rounds, of the others only where they could be measured.
    """
    chosen = surveyed.chosen
    best = max(surveyed.all, key=lambda candidate: rates.get(candidate.backend, 0.0))
    lead = rates[best.backend] / max(rates[chosen.backend], 1e-9)
    if lead <= MIN_GAIN:
        return chosen, ""
    return best, (
        f"{best.describe()} is recommended: in the final rounds it had {lead:.2f} times the images/s of "
        f"{chosen.describe()}, which the search chose"
    )


def tried_as(candidate: Candidate, trial: Trial | None, why: str = "") -> Tried:
    """The record of a candidate."""
    return Tried(
        name=candidate.describe(),
        backend=candidate.backend,
        decoder=candidate.decoder,
        cached=candidate.cached,
        options=dict(candidate.options),
        images_per_s=trial.images_per_s if trial else None,
        cpu_cores=trial.cpu_cores if trial else None,
        memory_mb=trial.memory_mb if trial else None,
        why=why,
    )


def _largest(settings: BenchSettings, opener: LoaderOpener, pipeline: ImagePipeline) -> tuple[int, int] | None:
    """The largest image, of which only a GPU's decoder asks."""
    if settings.device == "cpu" or not settings.tunes:
        return None
    source = opener.source(cached=opener.has(cached=True))
    return DecodeCeiling(source, pipeline, usable_decoders()[0], settings.seed).largest


def _told(found: Entrants) -> str:
    return "; ".join(f"{backend}: {why}" for backend, why in found.backends.items())


def _notes(settings: BenchSettings, found: Entrants, surveyed: Surveyed) -> tuple[str, ...]:
    notes = [f"backend {backend} was left out: {why}" for backend, why in found.backends.items()]
    if settings.tunes and not any(entrant.space for entrant in found.found):
        notes.append(f"there is nothing to search of backend {settings.backend!r} with these settings")
    if surveyed.untried:
        left = [f"{backend} ({', '.join(knobs)})" if knobs else backend for backend, knobs in surveyed.untried.items()]
        notes.append(f"not tried in {settings.tune_seconds:g} s (--tune-seconds): {'; '.join(left)}")
    return tuple(notes)
