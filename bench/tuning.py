"""A short search for the best values of knobs: one knob after another, each value in turn with the best so far."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from penstock.pipelines.errors import LoaderError

KnobValue = int | float | str | None
Options = dict[str, KnobValue]
Space = Mapping[str, Sequence[KnobValue]]
Opened = Callable[[Options], AbstractContextManager[Callable[[], float]]]
MIN_GAIN = 1.03  # a smaller lead is noise
_PASSES = 2

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What became of one knob. chosen: its value; tried: value (as JSON) -> images/s; failed: value -> why not."""

    chosen: KnobValue
    tried: dict[str, float]
    failed: dict[str, str]


class _UnusableError(Exception):
    """A value with which nothing could be measured."""


class _Contender:
    """Options that are open for measuring: until closed, `rate` tells images/s each time it is called."""

    def __init__(self, options: Options, opened: Opened) -> None:
        self.options, self._stack = options, ExitStack()
        self.rate = self._stack.enter_context(opened(options))

    def close(self) -> None:
        self._stack.close()


def num_measurements(space: Space) -> int:
    """How many measurements a search of `space` makes at most."""
    return sum(2 * _PASSES * (len(values) - 1) for values in space.values())


def search(space: Space, opened: Opened, progress: Callable[[str], None]) -> tuple[Options, dict[str, Tuned]]:
    """The best value found of each knob of `space`, and what was tried; the first value of each is where it starts.

    opened(options): a context in which calling what it gives measures images/s. A value is measured in turn with the
    best so far (best, value, value, best: a drift of the machine's speed falls on both alike), and taken if it was
    ahead both times and by more than MIN_GAIN in all. One that raises LoaderError is left out. `progress(what)` is
    called before each measurement. Raises LoaderError if the first values cannot be measured.
    """
    if not space:
        return {}, {}
    best = _Contender({knob: values[0] for knob, values in space.items()}, opened)
    tuned: dict[str, Tuned] = {}
    try:
        for knob, values in space.items():
            rates: dict[KnobValue, list[float]] = {}
            failed: dict[str, str] = {}
            for value in values[1:]:
                say = partial(progress, f"tuning: {knob}={value}")
                try:
                    trial, old, new = _duel(best, {**best.options, knob: value}, opened, say)
                except _UnusableError as error:
                    failed[_text(value)] = str(error)
                    continue
                rates.setdefault(best.options[knob], []).extend(old)
                rates.setdefault(value, []).extend(new)
                if _wins(old, new):
                    best, trial = trial, best
                trial.close()
            tried = {_text(value): statistics.median(measured) for value, measured in rates.items()}
            tuned[knob] = Tuned(chosen=best.options[knob], tried=tried, failed=failed)
        return best.options, tuned
    finally:
        best.close()


def _duel(
    best: _Contender, options: Options, opened: Opened, say: Callable[[], None]
) -> tuple[_Contender, list[float], list[float]]:
    """`options` opened, the rates of the best and theirs, pair by pair. Raises _UnusableError."""
    trial = _usable(lambda: _Contender(options, opened))
    rates: dict[_Contender, list[float]] = {best: [], trial: []}
    try:
        for number in range(_PASSES):
            for side in (best, trial) if number % 2 == 0 else (trial, best):
                say()
                rates[side].append(_usable(side.rate) if side is trial else side.rate())
    except BaseException:
        trial.close()
        raise
    return trial, rates[best], rates[trial]


def _usable(call: Callable[[], Result]) -> Result:
    try:
        return call()
    except LoaderError as error:
        raise _UnusableError(error.cause) from None


def _wins(old: Sequence[float], new: Sequence[float]) -> bool:
    ratios = [theirs / max(ours, 1e-9) for ours, theirs in zip(old, new, strict=True)]
    return min(ratios) > 1 and statistics.fmean(ratios) > MIN_GAIN


def _text(value: KnobValue) -> str:
    return json.dumps(value)
