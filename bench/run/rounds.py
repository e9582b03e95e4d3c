"""Makes alternating measurements, round after round, until they agree or the time is up."""

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

Key = tuple[str, str]  # kind, name of what is measured
Probe = Callable[[], "Rate | StepTimes"]
Results = dict[Key, list[Rate | StepTimes]]

ADVICE_SHARE = 0.2  # of a budget: kept for trying the advice
SETTLED = 0.03  # spread over median: more rounds would change nothing
# What the verdict needs first, with a budget: kind, beginning of the name.
_ORDER = (
    *(("loader", ""), ("ceiling", FETCH), ("ceiling", "decode + resize")),
    *(("baseline", ""), ("other", ""), ("model", ""), ("both", "")),
)
_COMPARED = ("loader", "other", "baseline")  # kinds whose ratios are reported, of rounds that measured both
_GUESS = 2.0  # times its length that a first measurement takes, with opening a loader

OnBegin = Callable[[int, int, str], None]
OnMeasured = Callable[[str, str, Sequence[float]], None]


class Prepared:
    """Measure what takes seconds to prepare, which is not done before its turn comes; `make()` returns the probe."""

    def __init__(self, make: Callable[[], Probe]) -> None:
        self._made = cache(make)

    def prepare(self) -> None:
        """Make the probe, unless that is done. Raises as making it does."""
        self._made()

    def __call__(self) -> Rate | StepTimes:
        return self._made()()


@dataclass(frozen=True, kw_only=True)
class Display:
    """Hold what is called as a run goes on.

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

    Without a budget each is made `settings.most_rounds` times. With one they are made in the order in which the verdict
    needs them, each until its rounds agree, and only where the time that is left suffices.

    Loaders that are compared go on until the rounds of all agree, and from the second round on follow each other, every
    second time in the other order: a drift of the machine's speed is then nearly the same for both sides of a ratio.

    decoder: the loader's, whose ceiling comes before the others'. failed(key, error): called with what was raised by a
    measurement, which is then left out.
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
        """Return the results of each measurement that was made."""
        return {key: found for key, found in self._results.items() if found}

    def turns(self, key: Key) -> tuple[int, ...]:
        """Return the number of the round that each result of a measurement is of."""
        return tuple(self._turns[key])

    @property
    def late(self) -> list[Key]:
        """Return the measurements that there was no time for."""
        return [key for key, found in self._results.items() if not found]

    def run(self, *, keep: float = 0.0, after: Callable[[], None] = lambda: None) -> None:
        """Make rounds for as long as that helps.

        keep: seconds of the budget that all but the first round leave. after(): called after each round.
        """
        while self._number < self._settings.most_rounds and self._round(keep if self._number else 0.0):
            self._number += 1
            after()

    def _round(self, keep: float) -> bool:
        """Make each measurement once more that is not settled and fits the time; return whether one was made."""
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
        """Return what this round measures, in its order."""
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
    """Return how early a measurement is wanted: its place in _ORDER, the loader's own decoder before the others."""
    kind, name = key
    places = [place for place, (of, begin) in enumerate(_ORDER) if kind == of and name.startswith(begin)]
    return places[0] if places else len(_ORDER), decoder not in name
