"""The search for the fastest candidate: a sweep over all combinations of values, then a final between the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product, zip_longest

from penstock.bench.probe.search.budgets import Budgets
from penstock.bench.probe.search.candidate import Candidate
from penstock.bench.probe.search.trials import Trial
from penstock.bench.record.bench_record import KnobValue, Tried
from penstock.pipelines.errors import LoaderError

HOPELESS = 0.7  # share of the best backend's rate: no setting compensates for less
SWEEP_SHARE = 0.6  # share of the search's time; the rest is for the final
FINALISTS = 4
FINAL_TRIALS = 4  # trials of each finalist, including the one of the sweep
_NEED_WORKERS = ("prefetch", "readers")  # options that matter only with workers


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """Hold the search space of one backend.

    Attributes:
        options: option of the backend, or "decoder" -> values to try, the most important option first.
    """

    start: Candidate
    options: Mapping[str, Sequence[KnobValue]] = field(default_factory=dict)
    fixed_workers: bool = False


@dataclass(kw_only=True)
class CandidateLog:
    """Hold the trials of one candidate.

    Attributes:
        why: why it cannot be chosen, "" if it can.
    """

    candidate: Candidate
    trials: list[Trial] = field(default_factory=list)
    why: str = ""

    @property
    def result(self) -> Trial | None:
        """Return the medians of its trials; None if nothing was measured."""
        return Trial.median(self.trials) if self.trials else None

    @property
    def images_per_s(self) -> float:
        """Return the median rate; 0 if nothing was measured."""
        return self.result.images_per_s if self.result else 0.0


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Hold the result of a search.

    Attributes:
        chosen: the fastest candidate.
        others: the best candidate of each other backend that was searched.
        untried: backend -> options with values that were not tried for lack of time; empty if not even its start was.
        tried, notes: the search's part of the record.
    """

    chosen: Candidate
    others: tuple[Candidate, ...] = ()
    untried: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tried: tuple[Tried, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[Candidate, ...]:
        """Return the chosen candidate and the others."""
        return (self.chosen, *self.others)


class SettingsSweep:
    """Searches for the fastest candidate within budgets and a given time, in three steps.

    1. The start of each backend is measured twice, the second time in reverse order. Backends far behind drop out.
    2. Every combination of values is measured once: first those that change one option of a start, with the backends
       alternating, then the most promising ones.
    3. The best FINALISTS are measured again, round by round, each round in reverse order of the previous one, so that
       a drift of the machine's speed affects all equally. The highest median wins.
    """

    def __init__(
        self,
        measure: Callable[[Candidate], Trial],
        budgets: Budgets | None = None,
        time_used: Callable[[], float] = lambda: 0.0,
        say: Callable[[str], None] = lambda what: None,
    ) -> None:
        """Prepare a search.

        measure(candidate): runs one trial; raises LoaderError if that fails. time_used(): the share of
        the search's time that has passed; may exceed 1. say(what): called before each trial.
        """
        self._measure, self._budgets = measure, budgets or Budgets()
        self._time_used, self._say = time_used, say
        self.logs: dict[str, CandidateLog] = {}
        self._failure: LoaderError | None = None

    def try_candidate(self, candidate: Candidate) -> bool:
        """Measure the candidate once more; return whether it can be chosen, and log the reason if not."""
        log = self.log(candidate)
        self._say(candidate.describe())
        try:
            log.trials.append(self._measure(candidate))
            log.why = self._budgets.refuses(Trial.median(log.trials))
        except LoaderError as error:
            log.why, self._failure = error.cause, error
        return not log.why

    def log(self, candidate: Candidate) -> CandidateLog:
        """Return the one log of `candidate`."""
        return self.logs.setdefault(candidate.describe(), CandidateLog(candidate=candidate))

    def run(self, spaces: Sequence[SearchSpace]) -> SearchResult:
        """Search. Raises ValueError if nothing fits the budgets, LoaderError if nothing can be opened."""
        untried: dict[str, tuple[str, ...]] = {}
        searched = self._without_slow_backends(self._measure_starts(spaces, untried))
        self._sweep(searched, untried)
        backends = [space.start.backend for space in searched]
        chosen = self._final(self._fitting(backends)) or _fastest(self._fitting(backends)) or searched[0].start
        others = (_fastest(self._fitting([backend])) for backend in backends if backend != chosen.backend)
        return SearchResult(chosen=chosen, others=tuple(filter(None, others)), untried=untried)

    def _measure_starts(self, spaces: Sequence[SearchSpace], untried: dict[str, tuple[str, ...]]) -> list[SearchSpace]:
        """Measure each start twice; return the spaces with a start that fits the budgets, at least one."""
        found: list[SearchSpace] = []
        for space in spaces:
            if found and self._time_used() >= 1:
                untried[space.start.backend] = ()
                continue
            start = self._start_that_fits(space)
            found += [replace(space, start=start)] if start is not None else []
        if not found:
            raise self._nothing_fits()
        for space in reversed(found if len(found) > 1 else []):
            if self._time_used() < 1:
                self.try_candidate(space.start)
        return found

    def _start_that_fits(self, space: SearchSpace) -> Candidate | None:
        """Return the space's start, or a smaller one that fits the budgets; None if none was found."""
        candidate: Candidate | None = space.start
        while candidate is not None:
            if self.try_candidate(candidate):
                return candidate
            result = self.log(candidate).result
            if result is None or self._time_used() >= 1:
                return None
            candidate = self._budgets.smaller(candidate, result, fewer_workers=not space.fixed_workers)
        return None

    def _nothing_fits(self) -> Exception:
        refused = [(self._budgets.excess(log.result), log) for log in self.logs.values() if log.result]
        if not refused and self._failure is not None:
            return self._failure
        cut = " in the available time" if self._time_used() >= 1 else ""
        _, least = min(refused, key=lambda need: need[0])
        need = f"{least.candidate.describe()}: {least.why}"
        return ValueError(f"nothing that fits was found{cut}; smallest need: {need}")

    def _without_slow_backends(self, spaces: Sequence[SearchSpace]) -> list[SearchSpace]:
        """Return the spaces worth searching, at least one; log the reason for the others."""
        working = [space for space in spaces if not self.log(space.start).why] or list(spaces[:1])
        best = max((self.log(space.start) for space in working), key=lambda log: log.images_per_s)
        for log in (self.log(space.start) for space in working):
            share = log.images_per_s / max(best.images_per_s, 1e-9)
            if log is not best and share < HOPELESS:
                log.why = f"{share:.2f} of {best.candidate.describe()} at its first trials: not searched further"
        return [space for space in working if self.log(space.start) is best or not self.log(space.start).why]

    def _sweep(self, spaces: Sequence[SearchSpace], untried: dict[str, tuple[str, ...]]) -> None:
        """Measure each combination once while there is time; note the options with untried values."""
        late: set[tuple[str, str]] = set()
        for turn in zip_longest(*(_single_changes(space) for space in spaces)):
            for space, name, candidate in filter(None, turn):
                if not self._try_once(space, candidate):
                    late.add((space.start.backend, name))
        combinations = [(space, candidate) for space in spaces for candidate in _combinations(space)]
        for found in sorted(combinations, key=lambda found: -self._promise(*found)):
            self._try_once(*found)
        for backend, options in ((space.start.backend, space.options) for space in spaces):
            names = tuple(name for name in options if (backend, name) in late)
            untried |= {backend: names} if names else {}

    def _try_once(self, space: SearchSpace, candidate: Candidate) -> bool:
        """Measure an untried candidate if it is worth a trial; return False if there was no time for it."""
        if candidate.describe() in self.logs or not self._is_worth_a_trial(space, candidate):
            return True
        in_time = self._time_used() < SWEEP_SHARE
        if in_time:
            self.try_candidate(candidate)
        return in_time

    def _is_worth_a_trial(self, space: SearchSpace, candidate: Candidate) -> bool:
        start = space.start
        if not candidate.workers and any(candidate.option(name) != start.option(name) for name in _NEED_WORKERS):
            return False
        return not self._budgets.too_many(candidate.workers, start, self.log(start).result)

    def _promise(self, space: SearchSpace, candidate: Candidate) -> float:
        """Return the candidate's images/s, assuming that the gains of its single changes multiply."""
        start = self._rate_of(space.start)
        changed = (space.start.with_option(name, candidate.option(name)) for name in space.options)
        return start * math.prod(self._rate_of(change) / max(start, 1e-9) for change in changed)

    def _rate_of(self, candidate: Candidate) -> float:
        log = self.logs.get(candidate.describe())
        return log.images_per_s if log and not log.why else 0.0

    def _fitting(self, backends: Sequence[str]) -> list[CandidateLog]:
        return [log for log in self.logs.values() if log.candidate.backend in backends and not log.why]

    def _final(self, logs: Sequence[CandidateLog]) -> Candidate | None:
        """Return the best of the fastest candidates after FINAL_TRIALS trials each; None if there is none."""
        running = sorted(logs, key=lambda log: -log.images_per_s)[:FINALISTS]
        while len(running) > 1 and min(len(log.trials) for log in running) < FINAL_TRIALS and self._time_used() < 1:
            running = running[::-1]
            for log in running:
                if self._time_used() < 1:
                    self.try_candidate(log.candidate)
            running = [log for log in running if not log.why]
        return _fastest(running)


def _fastest(logs: Sequence[CandidateLog]) -> Candidate | None:
    best = max(logs, key=lambda log: log.images_per_s, default=None)
    return None if best is None else best.candidate


def _values(space: SearchSpace, name: str) -> list[KnobValue]:
    """Return the values of an option to try, the start's first."""
    return list(dict.fromkeys((space.start.option(name), *space.options[name])))


def _single_changes(space: SearchSpace) -> Iterator[tuple[SearchSpace, str, Candidate]]:
    """Yield candidates that differ from the start in one option: first each option's second value, then its third."""
    values = ([(name, value) for value in _values(space, name)[1:]] for name in space.options)
    for changes in zip_longest(*values):
        for name, value in filter(None, changes):
            yield space, name, space.start.with_option(name, value)


def _combinations(space: SearchSpace) -> Iterator[Candidate]:
    """Yield all combinations of the space's values."""
    for values in product(*(_values(space, name) for name in space.options)):
        candidate = space.start
        for name, value in zip(space.options, values, strict=True):
            candidate = candidate.with_option(name, value)
        yield candidate
