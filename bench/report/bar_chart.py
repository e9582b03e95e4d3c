"""A chart of horizontal bars, one a row, that says its figures in words: for a wide page and for a narrow one."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.bench.report.svg import BACKGROUND, GRID, INK, NARROW_PX, SOFT, WAIT, WIDE_PX, svg

_LABEL_PX, _VALUE_PX = 340, 120  # columns of the wide chart
_LABEL_LETTERS = 44  # in either
_LINE_PX, _BAR_PX, _GAP_PX = 17, 16, 9
_BOTTOM_PX = 44
_NUM_TICKS = 4


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A row: what it is, from where to where it reaches, and its figure in words.

    spread: lowest and highest, drawn as a line. waiting: of its length, from its beginning, in another colour.
    """

    label: str
    end: float
    value: str
    colour: str
    begin: float = 0.0
    spread: tuple[float, float] | None = None
    waiting: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BarChart:
    """rows: bars, and headings as text. limit: where the axis ends; bars that pass it are broken off and marked."""

    rows: Sequence[Bar | str]
    axis: str
    limit: float

    def drawn(self, name: str) -> tuple[str, str]:
        """The chart as <svg>, wide and narrow."""
        wide = [_height(row, narrow=False) for row in self.rows]
        narrow = [_height(row, narrow=True) for row in self.rows]
        return tuple(  # type: ignore[return-value]
            svg(partial(_draw, self, heights), width=width, height=sum(heights) + _BOTTOM_PX, name=f"{name}-{kind}")
            for kind, width, heights in (("wide", WIDE_PX, wide), ("narrow", NARROW_PX, narrow))
        )


def wrapped(text: str, letters: int = _LABEL_LETTERS, lines: int = 2) -> list[str]:
    """Text in at most so many lines of so many letters; a table beside the plot has all of it."""
    return textwrap.wrap(text, letters, max_lines=lines, placeholder=" …") or [" "]


def _height(row: Bar | str, *, narrow: bool) -> float:
    if isinstance(row, str):
        return _LINE_PX + 2 * _GAP_PX
    text = _LINE_PX * len(wrapped(row.label))
    return text + _BAR_PX + _GAP_PX if narrow else max(text, _BAR_PX) + _GAP_PX


def _draw(chart: BarChart, heights: Sequence[float], figure: Any, width: float) -> None:
    narrow, height = width < WIDE_PX, sum(heights)
    left, right = (0.0, width - 78.0) if narrow else (float(_LABEL_PX), width - float(_VALUE_PX))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height + _BOTTOM_PX, 0))
    axes.axis("off")
    scale = (right - left) / chart.limit
    _axis(axes, chart, left, scale, height)
    top = 0.0
    for row, tall in zip(chart.rows, heights, strict=True):
        if isinstance(row, str):
            axes.text(0, top + tall - _GAP_PX / 2, row, color=INK, weight="bold", va="bottom")
        else:
            _row(axes, row, top, left, scale, chart.limit)
        top += tall


def _row(axes: Any, row: Bar, top: float, left: float, scale: float, limit: float) -> None:
    lines = wrapped(row.label)
    for number, line in enumerate(lines):
        axes.text(0, top + number * _LINE_PX + _LINE_PX / 2, line, color=INK, va="center_baseline")
    y = top + (_LINE_PX * len(lines) if left == 0 else max(0.0, (_LINE_PX * len(lines) - _BAR_PX) / 2))
    begin, end = left + scale * row.begin, left + scale * min(row.end, limit)
    between = begin + scale * min(row.waiting, limit)
    _box(axes, between, max(end, between + 1.0), y, row.colour)
    if row.waiting:
        _box(axes, begin, between, y, WAIT)
    after = end
    if row.end > limit:
        for shift in (-14, -9):
            axes.plot([end + shift, end + shift + 5], [y + _BAR_PX, y], color=BACKGROUND, linewidth=2.5)
    elif row.spread is not None:
        low, high = (left + scale * min(value, limit) for value in row.spread)
        axes.plot([low, high], [y + _BAR_PX / 2] * 2, color=INK, linewidth=1.5)
        for x in (low, high):
            axes.plot([x, x], [y + 4, y + _BAR_PX - 4], color=INK, linewidth=1.5)
        after = max(after, high)
    axes.text(after + 6, y + _BAR_PX / 2, row.value, color=INK, va="center_baseline")


def _box(axes: Any, begin: float, end: float, y: float, colour: str) -> None:
    axes.fill([begin, end, end, begin], [y, y, y + _BAR_PX, y + _BAR_PX], color=colour, linewidth=0)


def _axis(axes: Any, chart: BarChart, left: float, scale: float, height: float) -> None:
    from matplotlib.ticker import MaxNLocator

    ticks = [tick for tick in MaxNLocator(_NUM_TICKS).tick_values(0, chart.limit) if tick <= chart.limit]
    for tick in ticks:
        x = left + scale * tick
        axes.plot([x, x], [0, height + 4], color=GRID, linewidth=1, zorder=0)
        align = "left" if x < 12 else "center"
        axes.text(x, height + 8, f"{tick:,g}", color=SOFT, size=12, va="top", ha=align)
    axes.text(left, height + 26, chart.axis, color=SOFT, size=12, va="top", ha="left")
