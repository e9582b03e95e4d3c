"""Repeats alternating measurements, round after round, until they agree or the time is up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count

from penstock.bench.record.bench_record import FETCH, BenchRecord
from penstock.bench.record.clock import Rate, StepTimes, Stopwatch
from penstock.bench.record.resources import wait_until_idle
from penstock.bench.record.settings import BenchSettings
from penstock.bench.run.time_budget import TimeBudget

Key = tuple[str, str]  # kind and name of a measurement
Probe = Callable[[], "Rate | StepTimes"]
Results = dict[Key, list[Rate | StepTimes]]

ADVICE_SHARE = 0.2  # share of a budget reserved for trying the advice
SETTLED = 0.03  # spread over median: more rounds would change nothing
# The order of measurements with a budget, most important for the verdict first: kind, prefix of the name.
_ORDER = (
    *(("loader", ""), ("ceiling", FETCH), ("ceiling", "decode + resize")),
    *(("baseline", ""), ("other", ""), ("model", ""), ("both", "")),
)
_COMPARED = ("loader", "other", "baseline")  # kinds that are compared by ratios, from rounds that measured both
_GUESS = 2.0  # duration of a first measurement, with opening a loader, in multiples of its length

OnBegin = Callable[[int, int, str], None]
OnMeasured = Callable[[str, str, Sequence[float]], None]


class Prepared:
    """A probe that takes seconds to prepare, which is delayed until its turn; `make()` returns the probe."""

    def __init__(self, make: Callable[[], Probe]) -> None:
        self._made = cache(make)

    def prepare(self) -> None:
        """Make the probe on the first call. Raises as `make` does."""
        self._made()

    def __call__(self) -> Rate | StepTimes:
        return self._made()()


@dataclass(frozen=True, kw_only=True)
class Display:
    """Hold the callbacks for the progress of a run.

    Attributes:
        begin: called with (done, total, what) before each measurement; total is 0 if it is not known.
        measured: called with (kind, name, images/s of each round) after each measurement.
        recorded: called with the record so far after each round.
    """

    begin: OnBegin = lambda done, total, what: None
    measured: OnMeasured = lambda kind, name, rates: None
    recorded: Callable[[BenchRecord], None] = lambda record: None


class Rounds:
    """Makes the measurements of a run.

    Without a budget each is made `settings.most_rounds` times. With a budget they are made in order of importance for
    the verdict, each until its rounds agree, and only if the remaining time suffices.

    Compared loaders continue until the rounds of all agree. From the second round on they follow each other directly,
    in alternating order: a drift of the machine's speed is then nearly the same for both sides of a ratio.

    decoder: the loader's decoder; its ceiling is measured before the others. failed(key, error): called with the error
    of a measurement, which is then left out.
    """

    def __init__(
        self,
        settings: BenchSettings,
        budget: TimeBudget,
        probes: dict[Key, Probe],
        *,
        decoder: str,
        display: Display,
        failed: Callable[[Key, Exception], None],
    ) -> None:
        self._settings, self._budget, self._probes = settings, budget, probes
        self._display, self._failed = display, failed
        self._limited = budget.seconds is not None
        keys = sorted(probes, key=lambda key: _rank_of(key, decoder)) if self._limited else list(probes)
        self._results: Results = {key: [] for key in keys}
        self._turns: dict[Key, list[int]] = {key: [] for key in keys}
        self._costs = dict.fromkeys(keys, _GUESS * settings.seconds)
        self._slowest = 0.0
        self._made, self._number = count(), 0

    @property
    def results(self) -> Results:
        """Return the results of each finished measurement."""
        return {key: found for key, found in self._results.items() if found}

    def turns(self, key: Key) -> tuple[int, ...]:
        """Return the round number of each result of a measurement."""
        return tuple(self._turns[key])

    @property
    def late(self) -> list[Key]:
        """Return the measurements that did not fit the time."""
        return [key for key, found in self._results.items() if not found]

    def run(self, *, keep: float = 0.0, after: Callable[[], None] = lambda: None) -> None:
        """Make rounds as long as they help.

        keep: seconds of the budget to leave over, except in the first round. after(): called after each round.
        """
        while self._number < self._settings.most_rounds and self._round(keep if self._number else 0.0):
            self._number += 1
            after()

    def _round(self, keep: float) -> bool:
        """Repeat each measurement that is not settled and fits the time; return whether any was made."""
        most = self._settings.most_rounds
        total, made = 0 if math.isinf(most) else len(self._probes) * int(most), False
        for key in self._keys_in_turn():
            opening = self._slowest if key[0] != "ceiling" and not self._number else 0.0  # a loader has to be opened
            if max(self._costs[key], opening) > self._budget.left - keep:
                continue
            self._display.begin(next(self._made), total, key[1])
            probe = self._probes[key]
            try:
                if isinstance(probe, Prepared):
                    probe.prepare()
                watch = Stopwatch()
                self._results[key].append(probe())
                self._turns[key].append(self._number)
            except Exception as error:
                self._failed(key, error)
                del self._results[key]
                continue
            if key[0] != "ceiling":
                wait_until_idle()
            made, self._costs[key] = True, watch.seconds
            self._slowest = max(self._slowest, watch.seconds)
            self._display.measured(*key, [rate.median for rate in rates_of(self._results[key])])
        return made

    def _keys_in_turn(self) -> list[Key]:
        """Return the measurements of this round in their order."""
        compared = [key for key in self._results if key[0] in _COMPARED]
        done = {key for key, found in self._results.items() if self._limited and _is_settled(found)}
        if not done.issuperset(compared):
            done.difference_update(compared)
        keys = [key for key in self._results if key not in done]
        if not self._number or len(compared) < 2 or done.intersection(compared):
            return keys
        return compared[:: -1 if self._number % 2 else 1] + [key for key in keys if key not in compared]


def rates_of(results: Sequence[Rate | StepTimes]) -> list[Rate]:
    """Return the rate of each result that has one."""
    rates = [result.images_per_s if isinstance(result, StepTimes) else result for result in results]
    return [rate for rate in rates if rate is not None]


def _is_settled(results: Sequence[Rate | StepTimes]) -> bool:
    rates = [rate.median for rate in rates_of(results)]
    return len(rates) > 1 and max(rates) - min(rates) <= SETTLED * statistics.median(rates)


def _rank_of(key: Key, decoder: str) -> tuple[int, bool]:
    """Return the sort key of a measurement: its place in _ORDER, the loader's own decoder first."""
    kind, name = key
    places = [place for place, (of, begin) in enumerate(_ORDER) if kind == of and name.startswith(begin)]
    return places[0] if places else len(_ORDER), decoder not in name
