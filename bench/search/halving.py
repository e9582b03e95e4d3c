"""The search for the fastest candidate by successive halving: short turns, and the slower half drops out each round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.bench.record.record import KnobValue
from penstock.bench.search.budgets import Budgets
from penstock.bench.search.candidate import Candidate
from penstock.bench.search.search_space import SearchSpace
from penstock.bench.search.turn import Turn
from penstock.pipelines.errors import LoaderError

MIN_GAIN = 1.03  # a smaller lead is noise
HOPELESS = 0.7  # of the best backend: no setting makes up for that
_FOR_NEW_ONES = 0.6  # of the search's time: the rest is for the rounds between those that were measured once
_FINAL_TURNS = 3  # at least, of the last two: the median of fewer would be a mean
_NEED_WORKERS = ("prefetch", "readers", "workers_are")  # options that matter only where there are workers


@dataclass(kw_only=True)
class CandidateLog:
    """Hold what was measured of one candidate.

    Attributes:
        candidate: what was measured.
        turns: its measurements, one a round.
        why: the reason why it may not be chosen or was not searched further, "" if there is none.
    """

    candidate: Candidate
    turns: list[Turn] = field(default_factory=list)
    why: str = ""

    @property
    def result(self) -> Turn | None:
        """Return the medians of its turns; None if nothing was measured."""
        return Turn.median(self.turns) if self.turns else None


@dataclass(frozen=True, kw_only=True)
class Winners:
    """Hold what a search found.

    Attributes:
        chosen: the fastest candidate.
        others: the best candidate of each other backend that was searched.
        untried: backend -> options that there was no time for; all of them if there are none.
    """

    chosen: Candidate
    others: tuple[Candidate, ...] = ()
    untried: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def all(self) -> tuple[Candidate, ...]:
        """Return the chosen one and the others."""
        return (self.chosen, *self.others)


class HalvingSearch:
    """Searches for the fastest candidate within budgets and a given time.

    The start of each backend is measured first. Those that are not hopelessly behind are joined by every candidate that
    differs from one of them in one option, and by combinations of the best values. The slower half of all drops out,
    the rest is measured again in reverse order (so that a drift of the machine's speed falls on all alike), and so on
    until one is left, by the medians of the turns. As long as there is time, whatever differs from the winner in one
    option challenges it in the same way.
    """

    def __init__(
        self,
        measure: Callable[[Candidate], Turn],
        budgets: Budgets | None = None,
        time_used: Callable[[], float] = lambda: 0.0,
        say: Callable[[str], None] = lambda what: None,
    ) -> None:
        """Prepare a search.

        measure(candidate): one turn; raises LoaderError where it cannot be measured. time_used(): the share of the
        search's time that is over, from 0 to 1 and beyond. say(what): called before each turn.
        """
        self._measure, self._budgets = measure, budgets or Budgets()
        self._time_used, self._say = time_used, say
        self.logs: dict[str, CandidateLog] = {}
        self._best: dict[str, Candidate] = {}
        self._untried: dict[str, list[str]] = {}
        self._failure: LoaderError | None = None
        self._first: Candidate | None = None

    def begin_with(self, candidate: Candidate) -> None:
        """Measure what is likely to be a start before the spaces are known; `run` counts it as a first turn."""
        self._fits(candidate)
        self._first = candidate

    def run(self, spaces: Sequence[SearchSpace]) -> Winners:
        """Search. Raises ValueError if nothing fits the budgets, LoaderError if nothing can be opened."""
        spaces = self._starts(spaces)
        chosen = self._halve([space.start for space in spaces] + self._neighbours(spaces) + self._combinations(spaces))
        untried = {backend: tuple(options) for backend, options in self._untried.items()}
        by_backend = {space.start.backend: space for space in spaces}
        while challengers := self._neighbours([replace(by_backend[chosen.backend], start=chosen)]):
            winner = self._halve([chosen, *challengers])
            if self._rate(winner) <= MIN_GAIN * self._rate(chosen):
                break
            chosen = winner
        others = tuple(best for backend, best in self._best.items() if backend != chosen.backend)
        return Winners(chosen=chosen, others=others, untried=untried)

    def log(self, candidate: Candidate) -> CandidateLog:
        """Return the one log of `candidate`."""
        return self.logs.setdefault(candidate.describe(), CandidateLog(candidate=candidate))

    def _fits(self, candidate: Candidate) -> bool:
        """Measure the candidate once more; note why it drops out, if it does."""
        log = self.log(candidate)
        self._say(candidate.describe())
        try:
            log.turns.append(self._measure(candidate))
            log.why = self._budgets.refuses(Turn.median(log.turns))
        except LoaderError as error:
            log.why, self._failure = error.cause, error
        return not log.why

    def _rate(self, candidate: Candidate) -> float:
        result = self.log(candidate).result
        return result.images_per_s if result else 0.0

    def _starts(self, spaces: Sequence[SearchSpace]) -> list[SearchSpace]:
        """Return the spaces that are worth a search, the fastest start first; the starts fit the budgets.

        Each start is measured twice, the second time in reverse order.
        """
        found: list[SearchSpace] = []
        for space in spaces:
            if found and self._time_used() >= 1:
                self._untried[space.start.backend] = []
                continue
            start = self._first_that_fits(space)
            found += [replace(space, start=start)] if start is not None else []
        if not found:
            raise self._nothing_fits()
        for space in reversed(found if len(found) > 1 else []):
            if self._time_used() < 1:
                self._fits(space.start)
        found = [space for space in found if not self.log(space.start).why] or found[:1]
        found.sort(key=lambda space: -self._rate(space.start))
        best = found[0].start
        for space in found[1:]:
            share = self._rate(space.start) / max(self._rate(best), 1e-9)
            if share < HOPELESS:
                self.log(space.start).why = f"{share:.2f} of {best.describe()} at its first turns: not searched further"
        return [space for space in found if space.start is best or not self.log(space.start).why]

    def _first_that_fits(self, space: SearchSpace) -> Candidate | None:
        """Return the space's start, or where that takes more than it may, a smaller one; None if none was found."""
        candidate: Candidate | None = space.start
        while candidate is not None:
            if candidate == self._first:
                fits = not self.log(candidate).why
            elif len(self.logs) > (self._first is not None) and self._time_used() >= 1:
                break
            else:
                fits = self._fits(candidate)
            if fits:
                return candidate
            turn = self.log(candidate).result
            fewer = not space.fixed_workers
            candidate = self._budgets.smaller(candidate, turn, fewer_workers=fewer) if turn else None
        return None

    def _nothing_fits(self) -> Exception:
        refused = [(self._budgets.excess(log.result), log) for log in self.logs.values() if log.result]
        if not refused and self._failure is not None:
            return self._failure
        cut = " in the time there was" if self._time_used() >= 1 else ""
        _, least = min(refused, key=lambda need: need[0])
        need = f"{least.candidate.describe()}: {least.why}"
        return ValueError(f"nothing that fits was found{cut}; the smallest need was that of {need}")

    def _neighbours(self, spaces: Sequence[SearchSpace]) -> list[Candidate]:
        """Measure once whatever differs from a start in one option; return what fits.

        The first other value of each option of each space comes before any second one, should the time run out; what
        there is no time for is noted.
        """
        ranked: list[tuple[int, Candidate, str]] = []
        for space in spaces:
            for name, values in space.options.items():
                others = [value for value in values if value != space.start.option(name)]
                worth = [value for value in others if self._is_worth_a_turn(space.start, name, value)]
                ranked += [(rank, space.start.with_option(name, value), name) for rank, value in enumerate(worth)]
        fitting: list[Candidate] = []
        for _, candidate, name in sorted(ranked, key=lambda found: found[0]):
            if candidate.describe() in self.logs:
                continue
            if self._time_used() < _FOR_NEW_ONES:
                fitting += [candidate] if self._fits(candidate) else []
            elif name not in self._untried.setdefault(candidate.backend, []):
                self._untried[candidate.backend].append(name)
        return fitting

    def _is_worth_a_turn(self, start: Candidate, name: str, value: KnobValue) -> bool:
        if name in _NEED_WORKERS and not start.workers:
            return False
        return name != "workers" or not self._budgets.too_many(int(value or 0), start, self.log(start).result)

    def _combinations(self, spaces: Sequence[SearchSpace]) -> list[Candidate]:
        """Measure each start with its best values, one more at a time, the largest gain first; return what fits."""
        fitting: list[Candidate] = []
        for space in spaces:
            best = [max(self._variants(space, name), key=self._rate) for name in space.options]
            gaining = [found for found in best if self._rate(found) > MIN_GAIN * self._rate(space.start)]
            combined = space.start
            for found in sorted(gaining, key=self._rate, reverse=True):
                name = next(name for name in space.options if found.option(name) != space.start.option(name))
                candidate = combined.with_option(name, found.option(name))
                if candidate == found:
                    combined = candidate
                elif self._time_used() < 1 and self._fits(candidate):
                    combined = candidate
                    fitting.append(candidate)
        return fitting

    def _variants(self, space: SearchSpace, name: str) -> list[Candidate]:
        """Return the start, and what differs from it in one option and fits, as far as it was measured."""
        variants = [space.start.with_option(name, value) for value in space.options[name]]
        logs = [self.logs[variant.describe()] for variant in variants if variant.describe() in self.logs]
        return [space.start, *(log.candidate for log in logs if not log.why)]

    def _halve(self, running: Sequence[Candidate]) -> Candidate:
        """Return the winner among candidates that were measured once or more; note the best of each backend."""
        forward = False
        while True:
            running = sorted(running, key=self._rate, reverse=True)
            self._best |= {candidate.backend: candidate for candidate in reversed(running)}
            turns = min(len(self.log(candidate).turns) for candidate in running)
            if len(running) > 2 or turns >= _FINAL_TURNS:
                running = running[: (len(running) + 1) // 2]
            if len(running) == 1 or self._time_used() >= 1:
                return running[0]
            for candidate in running if forward else running[::-1]:
                if self._time_used() < 1:
                    self._fits(candidate)
            forward = not forward
            running = [candidate for candidate in running if not self.log(candidate).why] or running[:1]
