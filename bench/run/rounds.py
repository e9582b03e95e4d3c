"""Makes measurements in turn, round after round, until they agree or the time is up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import count

from penstock.bench.ceilings.all_ceilings import Probe
from penstock.bench.measure.clock import Rate, StepTimes, Stopwatch
from penstock.bench.record.record import BenchSettings
from penstock.bench.run.time_budget import TimeBudget
from penstock.bench.run.watched import Key

Results = dict[Key, list[Rate | StepTimes]]
OnMeasured = Callable[[str, str, Sequence[float]], None]

ADVICE_SHARE = 0.2  # of a budget: kept for trying the advice
SETTLED = 0.03  # spread over median: more rounds would change nothing
# What the verdict needs first, with a budget: kind, beginning of the name.
_ORDER = (("loader", ""), ("ceiling", "decode + resize"), ("baseline", ""), ("other", ""), ("model", ""), ("both", ""))
_GUESS = 2.0  # times its length that a first measurement takes, with opening a loader


class Rounds:
    """Makes the measurements of a run.

    Without a budget each is made `settings.most_rounds` times. With one they are made in the order in which the verdict
    needs them, each until its rounds agree, and only where the time that is left suffices.
    """

    def __init__(
        self,
        settings: BenchSettings,
        budget: TimeBudget,
        progress: Callable[[int, int, str], None],
        measured: OnMeasured,
    ) -> None:
        self._settings, self._budget = settings, budget
        self._progress, self._measured = progress, measured

    def run(
        self, probes: dict[Key, Probe], *, decoder: str, failed: Callable[[Key, Exception], None]
    ) -> tuple[Results, list[Key]]:
        """Return the results of each measurement, and those that there was no time for.

        decoder: the loader's, whose ceiling comes before the others'. failed(key, error): called with what was raised
        by a measurement, which is then left out.
        """
        limited, most = self._budget.seconds is not None, self._settings.most_rounds
        keys = sorted(probes, key=lambda key: _rank(key, decoder)) if limited else list(probes)
        results: Results = {key: [] for key in keys}
        costs = dict.fromkeys(keys, _GUESS * self._settings.seconds)
        taken: list[float] = []
        done, total = count(), 0 if math.isinf(most) else len(probes) * int(most)
        for number in count():
            wanted = [key for key in results if not (limited and _settled(results[key]))]
            made = False
            for key in wanted if number < most else []:
                slowest = max(taken, default=0.0) if key[0] != "ceiling" else 0.0  # a loader has to be opened
                if max(costs[key], 0.0 if number else slowest) > self._budget.left - self._kept(number):
                    continue
                self._progress(next(done), total, key[1])
                watch = Stopwatch()
                try:
                    results[key].append(probes[key]())
                except Exception as error:
                    failed(key, error)
                    del results[key]
                    continue
                made, costs[key] = True, watch.seconds
                taken.append(costs[key])
                self._measured(*key, [rate.median for rate in rates_of(results[key])])
            if not made:
                break
        late = [key for key in results if not results[key]]
        return {key: found for key, found in results.items() if found}, late

    def _kept(self, number: int) -> float:
        """Return the seconds of the budget that a round leaves for trying the advice; the first one needs all."""
        return self._budget.share(ADVICE_SHARE) if number and self._settings.apply else 0.0


def rates_of(results: Sequence[Rate | StepTimes]) -> list[Rate]:
    """Return the rate of each result that has one."""
    rates = [result.images_per_s if isinstance(result, StepTimes) else result for result in results]
    return [rate for rate in rates if rate is not None]


def _settled(results: Sequence[Rate | StepTimes]) -> bool:
    rates = [rate.median for rate in rates_of(results)]
    return len(rates) > 1 and max(rates) - min(rates) <= SETTLED * statistics.median(rates)


def _rank(key: Key, decoder: str) -> tuple[int, bool]:
    """Return how early a measurement is wanted: its place in _ORDER, the loader's own decoder before the others."""
    kind, name = key
    places = [place for place, (of, begin) in enumerate(_ORDER) if kind == of and name.startswith(begin)]
    return places[0] if places else len(_ORDER), decoder not in name
