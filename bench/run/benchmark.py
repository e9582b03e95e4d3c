"""The whole benchmark: choose settings, measure, judge, try the advice."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from penstock.bench.probe.ceilings.decode import DecodeCeilings
from penstock.bench.probe.search.candidate import BenchData
from penstock.bench.probe.search.settings_search import given_settings, search_settings
from penstock.bench.probe.search.settings_sweep import SearchResult
from penstock.bench.record.bench_record import BenchRecord
from penstock.bench.record.settings import ALL_BACKENDS, BenchSettings
from penstock.bench.run.measure import measure_all
from penstock.bench.run.rounds import Display
from penstock.bench.run.run_probes import Subject
from penstock.bench.run.take_advice import AdviceMeter, take_advice
from penstock.bench.run.time_budget import TimeBudget
from penstock.bench.verdict.judge import judge


def run_benchmark(
    data: BenchData,
    name: str,
    settings: BenchSettings,
    budget: TimeBudget | None = None,
    display: Display | None = None,
) -> BenchRecord:
    """Measure `data` according to the settings; return the record with its verdict and the tried advice.

    name: the data as the user wrote it, for the call to paste. Raises ValueError if the budget is too short for one
    measurement of the loader, or if nothing fits the limits; LoaderError if a loader cannot be opened.
    """
    budget, display = budget or TimeBudget(settings.budget), display or Display()
    if budget.left <= 0:
        raise budget.too_short()
    ceilings = DecodeCeilings(data.opener.source, data.pipeline, settings.seed)
    found = _choose_settings(data, settings, ceilings, budget, display)
    subject = Subject(data=data, settings=settings, found=found, ceilings=ceilings, budget=budget)
    record = measure_all(subject, display)
    verdict = judge(record, name)
    record = replace(record, verdict=verdict)
    if not settings.apply:
        return record
    meter = AdviceMeter(data.opener, record.settings.seconds)
    applied = take_advice(record, verdict.advice or (), found.chosen, meter, display.begin, budget)
    return replace(record, applied=applied)


def _choose_settings(
    data: BenchData, settings: BenchSettings, ceilings: DecodeCeilings, budget: TimeBudget, display: Display
) -> SearchResult:
    """Search the settings if requested; the time to open the data is deducted from the search."""
    if not settings.tunes and settings.backend != ALL_BACKENDS:
        return given_settings(settings, data.opener)
    if budget.seconds is not None and settings.tune_seconds is None:
        settings = replace(settings, tune_seconds=max(1.0, settings.search_seconds - budget.used))
    return search_settings(settings, data.opener, ceilings, display.begin, partial(display.measured, "search"))
