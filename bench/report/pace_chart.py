"""The plot of throughput over time: each round's windows, one measurement beside the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from penstock.bench.record.record import Measured
from penstock.bench.report.bar_chart import wrapped
from penstock.bench.report.bar_charts import COLOURS
from penstock.bench.report.svg import INK, NARROW_PX, SOFT, WIDE_PX, svg
from penstock.bench.report.text import rate_text

_LINES = ("-", (0, (6, 2)), (0, (2, 2)), (0, (8, 2, 2, 2)), (0, (1, 3)))  # told apart without colours
_LEGEND_PX, _PLOT_PX, _TOP_PX, _BOTTOM_PX = 20, 200, 26, 44
_GAP = 0.03  # of all seconds, between rounds


def pace_plot(shown: Sequence[Measured], name: str) -> tuple[str, str]:
    """Images/s of each window of each round over the seconds, as <svg>, wide and narrow."""
    both = []
    for kind, width in (("wide", WIDE_PX), ("narrow", NARROW_PX)):
        labels = [wrapped(_label(measured), 100 if kind == "wide" else 42) for measured in shown]
        legend = _LEGEND_PX * sum(map(len, labels))
        height = legend + _TOP_PX + _PLOT_PX + _BOTTOM_PX
        both.append(svg(partial(_draw, shown, labels, height), width=width, height=height, name=f"{name}-{kind}"))
    return both[0], both[1]


def _label(measured: Measured) -> str:
    named = f"{measured.name}, {measured.note}" if measured.note else measured.name
    return f"{named}: median {rate_text(measured.images_per_s)}"


def _draw(shown: Sequence[Measured], labels: list[list[str]], height: float, figure: Any, width: float) -> None:
    _legend(figure, shown, labels, width, height)
    left = 62
    box = (left / width, _BOTTOM_PX / height, (width - left - 8) / width, _PLOT_PX / height)
    axes = figure.add_axes(box)
    begins, end = _begins(shown)
    for number, measured in enumerate(shown):
        for begin, windows in zip(begins, measured.over_time, strict=False):
            edges = [begin]
            for seconds, _ in windows:
                edges.append(edges[-1] + seconds)
            rates = [rate for _, rate in windows]
            style = _LINES[number % len(_LINES)]
            axes.stairs(rates, edges, baseline=None, color=COLOURS[measured.kind], linewidth=2.2, linestyle=style)
    highest = max(rate for measured in shown for windows in measured.over_time for _, rate in windows)
    axes.set(xlim=(0, end), ylim=(0, 1.08 * highest or 1.0), ylabel="images/s")
    axes.grid(axis="y")
    axes.set_xlabel("seconds, one round after another", loc="left")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    for number, begin in enumerate(begins):
        if number:
            axes.axvline(begin - _GAP / 2 * end, color=SOFT, linewidth=1, linestyle=(0, (1, 2)))
        text = f"round {number + 1}" if width > NARROW_PX or len(begins) <= 4 else f"{number + 1}"
        axes.annotate(
            text,
            (begin, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 6),
            textcoords="offset points",
            color=SOFT,
            size=12,
        )


def _begins(shown: Sequence[Measured]) -> tuple[list[float], float]:
    """Where each round begins on the axis, and where the last one ends."""
    num_rounds = max(len(measured.over_time) for measured in shown)
    longest = [
        max(sum(s for s, _ in measured.over_time[k]) for measured in shown if k < len(measured.over_time))
        for k in range(num_rounds)
    ]
    gap = _GAP * sum(longest)
    begins = [sum(longest[:k]) + k * gap for k in range(num_rounds)]
    return begins, begins[-1] + longest[-1]


def _legend(figure: Any, shown: Sequence[Measured], labels: list[list[str]], width: float, height: float) -> None:
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    y = _LEGEND_PX / 2
    for number, (measured, lines) in enumerate(zip(shown, labels, strict=True)):
        style = _LINES[number % len(_LINES)]
        axes.plot([0, 34], [y, y], color=COLOURS[measured.kind], linewidth=2.2, linestyle=style)
        for line in lines:
            axes.text(44, y, line, color=INK, va="center_baseline")
            y += _LEGEND_PX
