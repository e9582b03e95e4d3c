"""Duels between settings, paired in time, and a search for the best value of each knob by them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Generic, TypeVar

from penstock.bench.record.record import KnobValue, Options
from penstock.pipelines.errors import LoaderError

Space = Mapping[str, Sequence[KnobValue]]

MIN_GAIN = 1.03  # a smaller lead is noise
_CLEARLY_BEHIND = 0.97  # in its first pair: a second one is not worth the time
_MAX_PAIRS = 3
_SMALL_STEP = 0.15  # of a number, relative: what it changes is lost in the noise

Contestant = TypeVar("Contestant")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One short measurement: images/s, and of the machine processors kept busy and MB (None: not known)."""

    images_per_s: float
    cpu_cores: float | None = None
    memory_mb: float | None = None


Opened = Callable[[Contestant], AbstractContextManager[Callable[[], Trial]]]


@dataclass(kw_only=True)
class Attempt(Generic[Contestant]):
    """What became of a contestant: its trials, and why it is out of the running ("" if it is not)."""

    contestant: Contestant
    trials: list[Trial] = field(default_factory=list)
    why: str = ""

    @property
    def trial(self) -> Trial | None:
        """The median of the rates, the peaks of what was taken; None if nothing was measured."""
        if not self.trials:
            return None
        cores = [trial.cpu_cores for trial in self.trials if trial.cpu_cores is not None]
        sizes = [trial.memory_mb for trial in self.trials if trial.memory_mb is not None]
        return Trial(
            images_per_s=statistics.median(trial.images_per_s for trial in self.trials),
            cpu_cores=statistics.median(cores) if cores else None,
            memory_mb=max(sizes, default=None),
        )


@dataclass(kw_only=True)
class Rules(Generic[Contestant]):
    """What the contests of one search share, and what they wrote down.

    opened(contestant): a context in which calling what it gives measures it. refuses(trial): why it may not win, "" if
    it may. out_of_time(): asked before each measurement. say(what): called before each.
    """

    opened: Opened[Contestant]
    name: Callable[[Contestant], str]
    refuses: Callable[[Trial], str] = lambda trial: ""
    out_of_time: Callable[[], bool] = lambda: False
    say: Callable[[str], None] = lambda what: None
    attempts: dict[str, Attempt[Contestant]] = field(default_factory=dict)

    def attempt(self, contestant: Contestant) -> Attempt[Contestant]:
        """The one record of `contestant`."""
        return self.attempts.setdefault(self.name(contestant), Attempt(contestant=contestant))


class RefusedError(Exception):
    """A contestant that may not win; `trial`: what it took."""

    def __init__(self, why: str, trial: Trial) -> None:
        super().__init__(why)
        self.trial = trial


class _OutOfTimeError(Exception):
    pass


class _UnusableError(Exception):
    """A challenger that cannot be measured."""


class _Contender(Generic[Contestant]):
    """A contestant that is open for measuring."""

    def __init__(self, contestant: Contestant, rules: Rules[Contestant]) -> None:
        self.contestant, self._rules = contestant, rules
        self._attempt, self._stack = rules.attempt(contestant), ExitStack()
        self._measure = self._stack.enter_context(rules.opened(contestant))

    def measure(self, *, check: bool) -> float:
        """Images/s. Raises RefusedError with `check`: who leads stays, or noise at a budget's edge would depose it."""
        self._rules.say(self._rules.name(self.contestant))
        trial = self._measure()
        if not check:  # the challenger's memory is beside its own by now
            trial = replace(trial, memory_mb=None)
        self._attempt.trials.append(trial)
        why = self._rules.refuses(trial) if check else ""
        if why:
            self._attempt.why = why
            raise RefusedError(why, trial)
        return trial.images_per_s

    def close(self) -> None:
        self._stack.close()


@dataclass(frozen=True, kw_only=True)
class Duel:
    """ratio: of the challenger's images/s to those of the best before it, None if unknown. refused: for what trial."""

    won: bool = False
    ratio: float | None = None
    refused: Trial | None = None
    out_of_time: bool = False


class Contest(Generic[Contestant]):
    """A context that keeps the best so far open, and lets others challenge it; gain: of the best over the first.

    Raises LoaderError where the first cannot be opened; with `check` it is measured too, and RefusedError raised.
    """

    def __init__(self, first: Contestant, rules: Rules[Contestant], *, check: bool = False) -> None:
        self._rules, self.gain = rules, 1.0
        self._best = _Contender(first, rules)
        try:
            if check:
                self._best.measure(check=True)
        except BaseException:
            self._best.close()
            raise

    @property
    def best(self) -> Contestant:
        """The winner so far."""
        return self._best.contestant

    def challenge(self, challenger: Contestant, *, again: bool = False) -> Duel:
        """A duel, in pairs (best, challenger, challenger, best, ...): a drift of the machine's speed falls on both.

        The challenger takes the lead if it was ahead in two pairs of two, or by the median of three, and by more than
        MIN_GAIN. One pair is enough where it is clearly behind. One that cannot be measured or is refused is written
        down with its cause. What was tried before is not tried again, unless `again`.
        """
        rules = self._rules
        if rules.name(challenger) in rules.attempts and not again:
            return Duel()
        if rules.out_of_time():
            return Duel(out_of_time=True)
        try:
            trial = _Contender(challenger, rules)
        except LoaderError as error:
            rules.attempt(challenger).why = error.cause
            return Duel()
        try:
            duel = self._fought(trial)
            if duel.won:
                self._best, trial = trial, self._best
                self.gain *= duel.ratio or 1.0
            return duel
        finally:
            trial.close()

    def _fought(self, trial: _Contender[Contestant]) -> Duel:
        ratios: list[float] = []
        attempt = self._rules.attempt(trial.contestant)
        try:
            while (won := _decided(ratios)) is None:
                ratios.append(self._pair(trial, challenger_first=len(ratios) % 2 == 1))
        except _OutOfTimeError:
            attempt.why = "the time was over before its duel was"
            return Duel(out_of_time=True)
        except RefusedError as error:
            return Duel(refused=error.trial)
        except _UnusableError as error:
            attempt.why = str(error)
            return Duel()
        return Duel(won=won, ratio=statistics.fmean(ratios))

    def _pair(self, trial: _Contender[Contestant], *, challenger_first: bool) -> float:
        rates: dict[bool, float] = {}
        for challengers in (challenger_first, not challenger_first):
            if self._rules.out_of_time():
                raise _OutOfTimeError
            if not challengers:
                rates[False] = self._best.measure(check=False)
                continue
            try:
                rates[True] = trial.measure(check=True)
            except LoaderError as error:  # the best's own would end the search
                raise _UnusableError(error.cause) from None
        return rates[True] / max(rates[False], 1e-9)

    def __enter__(self) -> Contest[Contestant]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._best.close()


def _decided(ratios: Sequence[float]) -> bool | None:
    """Whether a challenger with these ratios to the best has won, None if that is open."""
    if len(ratios) < 2:
        return False if ratios and ratios[0] < _CLEARLY_BEHIND else None
    if len(ratios) < _MAX_PAIRS:
        leads = statistics.fmean(ratios) > MIN_GAIN
        return None if leads and min(ratios) <= 1 else leads
    return statistics.median(ratios) > MIN_GAIN


def climb(
    contest: Contest[Contestant],
    knob: str,
    values: Sequence[KnobValue],
    value_of: Callable[[Contestant, str], KnobValue],
    with_value: Callable[[Contestant, str, KnobValue], Contestant],
) -> bool:
    """Challenges the best with other values of one knob; False if the time ran out before all was tried.

    Numbers: upwards while that gains or the step is too small to tell, then downwards if nothing was gained. Anything
    else: each value.
    """
    begin = value_of(contest.best, knob)
    for way in _ways(begin, values):
        last = begin
        for value in way:
            duel = contest.challenge(with_value(contest.best, knob, value))
            if duel.out_of_time:
                return False
            if not duel.won and not _is_small_step(last, value):
                break
            last = value
        if _is_number(begin) and value_of(contest.best, knob) != begin:
            break
    return True


def _ways(begin: KnobValue, values: Sequence[KnobValue]) -> list[list[KnobValue]]:
    """The values in the order of trying, a way for each that does not depend on the one before."""
    if not isinstance(begin, (int, float)) or not all(map(_is_number, values)):
        return [[value] for value in values if value != begin]
    numbers = sorted(value for value in values if isinstance(value, (int, float)))
    return [[value for value in numbers if value > begin], [value for value in reversed(numbers) if value < begin]]


def _is_number(value: KnobValue) -> bool:
    return isinstance(value, (int, float))


def _is_small_step(last: KnobValue, value: KnobValue) -> bool:
    if not isinstance(last, (int, float)) or not isinstance(value, (int, float)):
        return False
    return abs(value - last) < _SMALL_STEP * max(abs(value), abs(last))


def search(space: Space, rules: Rules[Options]) -> Options:
    """The best value found of each knob of `space`; the first value of each is where it starts.

    Raises LoaderError if that cannot be measured.
    """
    if not space:
        return {}
    with Contest({knob: values[0] for knob, values in space.items()}, rules) as contest:
        for knob, values in space.items():
            climb(contest, knob, values, dict.get, _with_option)
        return contest.best


def _with_option(options: Options, knob: str, value: KnobValue) -> Options:
    return {**options, knob: value}
