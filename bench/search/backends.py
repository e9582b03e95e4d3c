"""The search over all ways of loading: backends against each other, then the settings of each, within budgets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.bench.record.record import KnobValue
from penstock.bench.search.budgets import Budgets
from penstock.bench.search.candidate import Candidate
from penstock.bench.search.tuning import Contest, RefusedError, Rules, Space, Trial, climb
from penstock.pipelines.errors import LoaderError

HOPELESS = 0.7  # of the best: no setting makes up for that
_PASSES = 2  # over the knobs of the leader; the second tries only what the first one changed
_OF_WORKERS = ("prefetch", "readers", "workers_are")  # matter only where there are workers


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """A backend: the candidate to begin with, and the knobs to search. fixed_workers: as the user said."""

    start: Candidate
    space: Space = field(default_factory=dict)
    fixed_workers: bool = False


@dataclass(frozen=True, kw_only=True)
class Surveyed:
    """chosen: the fastest found; others: the best of each other backend in the running, the fastest start first;
    untried: backend -> knobs that there was no time for, all of them if there are none.
    """

    chosen: Candidate
    others: tuple[Candidate, ...] = ()
    untried: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def all(self) -> tuple[Candidate, ...]:
        """The chosen one and the others."""
        return (self.chosen, *self.others)


class Survey:
    """One search. rules: of its duels, `budgets` among them; what was tried is written down there."""

    def __init__(self, rules: Rules[Candidate], budgets: Budgets) -> None:
        self._rules, self._budgets = rules, budgets
        self._untried: dict[str, list[str]] = {}

    def run(self, entrants: Sequence[Entrant]) -> Surveyed:
        """The starts in duels; then the knobs of the leader; then those of each other backend that is not hopelessly
        behind by now, in a contest of its own; then the best of each against the leader's.

        Raises ValueError if nothing fits the budgets, LoaderError if nothing can be opened.
        """
        first, contest = self._first(entrants)
        spaces = {entrant.start.backend: entrant.space for entrant in entrants}
        with contest:
            starts = self._starts(contest, entrants[entrants.index(first) + 1 :])
            began = contest.gain
            self._search(contest, spaces[contest.best.backend], _PASSES)
            chosen, gain = contest.best, contest.gain / began
        others = {start.backend: start for start, _ in starts if start.backend != chosen.backend}
        for start, share in starts:
            if start.backend not in others:
                continue
            now = share / gain
            if now >= HOPELESS:
                others[start.backend] = self._best_of(start, spaces[start.backend])
            else:
                self._rules.attempt(start).why = f"{now:.2f} of the best by then: its settings were not searched"
        changed = [others[start.backend] for start, _ in starts if others.get(start.backend, start) != start]
        if changed:
            with Contest(chosen, self._rules) as contest:
                for other in changed:
                    if contest.challenge(other, again=True).out_of_time:
                        self._untried.setdefault(other.backend, []).append("a last duel with the best")
                if contest.best != chosen:
                    others[chosen.backend], chosen = chosen, others.pop(contest.best.backend)
        untried = {backend: tuple(knobs) for backend, knobs in self._untried.items()}
        return Surveyed(chosen=chosen, others=tuple(others.values()), untried=untried)

    def _first(self, entrants: Sequence[Entrant]) -> tuple[Entrant, Contest[Candidate]]:
        """The first entrant that can be measured and fits, in a contest of its own."""
        needs: list[tuple[float, str]] = []
        failure: LoaderError | None = None
        for entrant in entrants:
            candidate: Candidate | None = entrant.start
            while candidate is not None and not (needs and self._rules.out_of_time()):
                try:
                    return entrant, Contest(candidate, self._rules, check=True)
                except RefusedError as error:
                    taken = f"{candidate.describe()}: {error}"
                    needs.append((self._budgets.excess(error.trial), taken))
                    candidate = self._smaller(entrant, candidate, error.trial)
                except LoaderError as error:
                    self._rules.attempt(candidate).why, failure = error.cause, error
                    break
        if not needs and failure is not None:
            raise failure
        cut = " in the time there was" if self._rules.out_of_time() else ""
        raise ValueError(f"nothing that fits was found{cut}; the smallest need was that of {min(needs)[1]}")

    def _smaller(self, entrant: Entrant, candidate: Candidate, trial: Trial) -> Candidate | None:
        return self._budgets.smaller(candidate, trial, fewer_workers=not entrant.fixed_workers)

    def _starts(self, contest: Contest[Candidate], entrants: Sequence[Entrant]) -> list[tuple[Candidate, float]]:
        """The starts that stay in the running, the fastest first, each with its share of that one's images/s."""
        shares, starts = {contest.best.backend: 1.0}, [contest.best]
        for entrant in entrants:
            candidate: Candidate | None = entrant.start
            duel = contest.challenge(entrant.start)
            while duel.refused is not None and candidate is not None:
                candidate = self._smaller(entrant, candidate, duel.refused)
                duel = contest.challenge(candidate) if candidate is not None else duel
            if duel.out_of_time:
                self._untried[entrant.start.backend] = []
            if candidate is None or duel.ratio is None:
                continue
            if duel.won:
                shares = {backend: share / duel.ratio for backend, share in shares.items()}
            shares[candidate.backend] = 1.0 if duel.won else duel.ratio
            starts.append(candidate)
        for start in starts:
            share = shares[start.backend]
            if share < HOPELESS:
                found = f"{share:.2f} of {contest.best.describe()} at its first measurement: not searched further"
                self._rules.attempt(start).why = found
        running = [(start, shares[start.backend]) for start in starts if shares[start.backend] >= HOPELESS]
        return sorted(running, key=lambda found: -found[1])

    def _best_of(self, start: Candidate, space: Space) -> Candidate:
        """The best settings of a backend that is not the leader."""
        if not space:
            return start
        if self._rules.out_of_time():
            self._untried[start.backend] = list(space)
            return start
        with Contest(start, self._rules) as contest:
            self._search(contest, space, 1)
            return contest.best

    def _search(self, contest: Contest[Candidate], space: Space, passes: int) -> None:
        """Climbs knob after knob until a pass changes nothing; first those that a budget has stepped down."""
        start = contest.best
        knobs = sorted(space, key=lambda knob: start.knob(knob) == space[knob][0])
        for number in range(passes):
            before = contest.best
            for knob in knobs:
                worth = list(self._worth(contest.best, knob, space[knob]))
                done = climb(contest, knob, worth, Candidate.knob, Candidate.with_knob)
                if not done and number == 0:
                    self._untried.setdefault(contest.best.backend, []).append(knob)
            if contest.best == before or self._rules.out_of_time():
                return

    def _worth(self, best: Candidate, knob: str, values: Sequence[KnobValue]) -> Iterator[KnobValue]:
        if knob in _OF_WORKERS and not best.workers:
            return
        trial = self._rules.attempt(best).trial
        for value in values:
            if knob != "workers" or not self._budgets.too_many(int(value or 0), best, trial):
                yield value
