"""Tries the verdict's advice: measures with and without each change that the benchmark can make."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any

from penstock.bench.probe.data.wrapped_sources import each_once, repeat_source
from penstock.bench.probe.search.candidate import Candidate, LoaderOpener
from penstock.bench.record.advice import BOTH, Advice, Change
from penstock.bench.record.bench_record import BenchRecord, TriedAdvice
from penstock.bench.record.loader_rate import loader_rate
from penstock.bench.record.settings import BenchSettings
from penstock.bench.run.run_probes import cached_sample, training_settings
from penstock.bench.run.time_budget import TimeBudget
from penstock.bench.train.step.models import build_model
from penstock.bench.train.step.rates import training_times
from penstock.bench.verdict.rules import WORTH
from penstock.pipelines.errors import LoaderError

MAX_TRIED = 3  # maximum number of changes, most promising first
PAIRS = 2  # measurements with and without the change: before, after, after, before
_OPENING_S, _CACHING_S = 3.0, 15.0  # approximate seconds to open a loader, to build the cache of a sample


@dataclass(frozen=True)
class AdviceMeter:
    """Measures candidates over the data of `opener` for `seconds`, each opened only for its measurement.

    Only one loader is open at a time: a second one would prefetch batches and slow down the measured one.
    """

    opener: LoaderOpener
    seconds: float

    @cached_property
    def _model(self) -> Any:
        return build_model(training_settings(self.opener.settings), max(2, len(self.opener.classes)))

    def rate(self, candidate: Candidate, *, quantity: str, amp: str) -> float:
        """Return images/s of the loader, or of loader + model for quantity "both"."""
        wanted, seconds = self.opener.settings, self.seconds
        with self.opener.open(candidate) as loader:
            if quantity != BOTH:
                return loader_rate(loader, seconds=seconds, device=wanted.device).median
            settings = replace(training_settings(wanted), amp=amp)  # type: ignore[arg-type]
            rate = training_times(self._model, settings, loader=loader, seconds=seconds).images_per_s
            return rate.median if rate is not None else 0.0

    @contextmanager
    def on_a_sample(self) -> Iterator[tuple[AdviceMeter, str]]:
        """Yield a meter over a sample of the data and its lossless cache, and a note about the sample."""
        files = self.opener.source(cached=False)
        with cached_sample(each_once(files), self.opener.settings.workers) as (sample, cache):
            entries = max(len(sample), len(files))
            both = (repeat_source(source, entries) for source in (sample, cache))
            opener = LoaderOpener(self.opener.settings, self.opener.pipeline, *both)
            yield AdviceMeter(opener, self.seconds), f"of {len(sample):,} images"


def take_advice(
    record: BenchRecord,
    advice: Sequence[Advice],
    present: Candidate,
    meter: AdviceMeter,
    progress: Callable[[int, int, str], None],
    budget: TimeBudget,
) -> tuple[TriedAdvice, ...]:
    """Try each promising change that the benchmark can make in time, alternating with `present`.

    progress(done, total, what) is called before each measurement. A change that cannot be opened is reported as failed.
    """
    promising = [each for each in advice if each.change is not None and (record.gain(each) or 0.0) > WORTH]
    promising = [each for each in promising[:MAX_TRIED] if budget.left >= _cost_of(each, record.settings)]
    done, total = count(), 2 * PAIRS * len(promising)
    tried: list[TriedAdvice] = []
    for each in promising:
        if budget.left < _cost_of(each, record.settings):
            continue
        try:
            tried.append(_try_advice(record, each, present, meter, lambda what: progress(next(done), total, what)))
        except LoaderError as error:
            tried.append(TriedAdvice(what=each.what, quantity=each.quantity, predicted=None, failed=error.cause))
    return tuple(tried)


def _cost_of(advice: Advice, settings: BenchSettings) -> float:
    """Return the approximate number of seconds to try the advice."""
    cached = advice.change is not None and advice.change.cache is not None
    return trial_seconds(settings) + _CACHING_S * cached


def trial_seconds(settings: BenchSettings) -> float:
    """Return the approximate number of seconds to try a change without a cache."""
    return 2 * PAIRS * (settings.seconds + _OPENING_S)


def _try_advice(
    record: BenchRecord, advice: Advice, present: Candidate, meter: AdviceMeter, say: Callable[[str], None]
) -> TriedAdvice:
    change, amp = advice.change, record.settings.amp
    assert change is not None
    if change.cache is not None:
        with meter.on_a_sample() as (on_sample, note):
            pairs = _measure_pairs(present, change, on_sample, (advice.quantity, amp), say)
    else:
        note, pairs = "", _measure_pairs(present, change, meter, (advice.quantity, amp), say)
    before, measured = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    gain = record.gain(advice)
    return TriedAdvice(
        what=advice.what,
        quantity=advice.quantity,
        predicted=None if gain is None else before * gain,
        before=before,
        measured=measured,
        rounds=tuple(pairs),
        note=note,
    )


def _measure_pairs(
    present: Candidate, change: Change, meter: AdviceMeter, how: tuple[str, str], say: Callable[[str], None]
) -> list[tuple[float, float]]:
    """Measure (images/s before, images/s after the change) PAIRS times, in the order before, after, after, before."""
    quantity, amp = how
    versions = (
        (present, amp, "without the advice"),
        (apply_change(present, change), change.amp or amp, "with the advice"),
    )
    pairs: list[tuple[float, float]] = []
    for number in range(PAIRS):
        rates = [0.0, 0.0]
        for version in (0, 1) if number % 2 == 0 else (1, 0):
            candidate, precision, what = versions[version]
            say(what)
            rates[version] = meter.rate(candidate, quantity=quantity, amp=precision)
        pairs.append((rates[0], rates[1]))
    return pairs


def apply_change(candidate: Candidate, change: Change) -> Candidate:
    """Return the changed candidate; `amp`, which is not an option of the loader, is left to the caller."""
    named = {name: getattr(change, name) for name in ("workers", "requests", "bytes_ahead", "shuffle")}
    options = {**candidate.options, **{name: value for name, value in named.items() if value is not None}}
    return replace(
        candidate,
        backend="hdf5" if change.cache else candidate.backend,
        cached=candidate.cached or change.cache is not None,
        decoder=change.decoder or candidate.decoder,
        dtype=change.dtype or candidate.dtype,
        options=options,
    )
