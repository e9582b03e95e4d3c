"""Bar and line charts for the page's template: positions in percent, values as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_NUM_TICKS = 4  # approximate number of ticks on an axis
_CHARACTER = 0.018  # width of a character of a value, as a share of the axis

Tick = tuple[str, str]  # position in percent of the axis, text


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Hold one row of a bar chart, in the unit of its axis.

    Attributes:
        value: the row's value as text.
        kind: class of its colour in the page's style.
        begin, end: ends of the bar.
        spread: lowest and highest, drawn as an error tick.
        waiting: length of the first part of the bar, drawn in another colour.
    """

    label: str
    value: str
    kind: str
    end: float
    begin: float = 0.0
    spread: tuple[float, float] | None = None
    waiting: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BarChart:
    """Hold horizontal bars on one linear axis.

    Attributes:
        rows: bars, and headings as text.
        limit: end of the axis; a longer bar is drawn broken off.
        ceiling: a value that is marked in every row, if it is on the axis.
    """

    rows: Sequence[Bar | str]
    axis: str
    limit: float
    ceiling: float | None = None

    def at(self, value: float) -> str:
        """Return the position of `value` on the axis, at most its end."""
        return _percent(min(value, self.limit) / self.limit)

    def value_at(self, bar: Bar) -> str:
        """Return the position of the text of `bar`: after the bar, its error tick and a ceiling that would cross it."""
        begin = max(bar.end, bar.spread[1] if bar.spread else 0.0)
        width = _CHARACTER * (len(bar.value) + 1) * self.limit
        if self.ceiling is not None and begin <= self.ceiling < min(begin + width, self.limit):
            begin = self.ceiling
        return self.at(begin)

    @property
    def step(self) -> str:
        """Distance of the axis' grid lines."""
        return _percent(_step(self.limit) / self.limit)

    @property
    def ticks(self) -> list[Tick]:
        """Position and text of the axis' grid lines."""
        return list(ticks(self.limit))

    @property
    def text(self) -> str:
        """The content of the chart as text."""
        rows = [f"{row.label}: {row.value}" if isinstance(row, Bar) else row for row in self.rows]
        return f"Bar chart, {self.axis}. {'; '.join(rows)}."


@dataclass(frozen=True, kw_only=True)
class Line:
    """Hold one line of a chart; each of `parts` is a connected line of points (x, y) in shares of the axes."""

    label: str
    kind: str
    parts: Sequence[Sequence[tuple[float, float]]]

    @property
    def polylines(self) -> list[str]:
        """Points of each part in a square of 1000 units, y down, in SVG's notation."""
        return [" ".join(f"{1000 * x:.1f},{1000 - 1000 * y:.1f}" for x, y in part) for part in self.parts]


@dataclass(frozen=True, kw_only=True)
class LineChart:
    """Hold lines over two axes.

    Attributes:
        x_ticks, y_ticks: position and text of each tick.
        marks: position and text of vertical lines.
    """

    lines: Sequence[Line]
    x_axis: str
    y_axis: str
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    marks: Sequence[Tick]
    text: str


def ticks(limit: float) -> Iterator[Tick]:
    """Yield position and text of round numbers on a linear axis from 0 to `limit`."""
    step = _step(limit)
    for number in range(int(limit / step * (1 + 1e-9)) + 1):
        yield _percent(number * step / limit), f"{number * step:,g}"


def log_ticks(low: float, high: float) -> Iterator[Tick]:
    """Yield position and text of the powers of ten on a logarithmic axis from `low` to `high`."""
    for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
        yield _percent(log_share(10.0**power, low, high)), f"{10.0**power:g}"


def log_share(value: float, low: float, high: float) -> float:
    """Return the position of `value` on a logarithmic axis from `low` to `high`, in shares of it."""
    return math.log(value / low) / math.log(high / low) if high > low else 0.5


def _step(limit: float) -> float:
    power = 10.0 ** math.floor(math.log10(limit / _NUM_TICKS))
    return power * min((1, 2, 2.5, 5, 10), key=lambda factor: abs(limit / (power * factor) - _NUM_TICKS))


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"
