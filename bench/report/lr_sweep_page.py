"""The page of a learning-rate sweep: loss over learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.bench.report.charts import Line, LineChart, log_share, log_ticks, ticks
from penstock.bench.report.page import fill_template
from penstock.bench.report.section_types import Figure, Section

_FIRST = 10  # updates, before the loss diverges: they set the scale
_ROOM = 1.5  # times the highest of their losses


def write_sweep_page(sweep: Mapping[str, Any], path: Path) -> None:
    """Write the page of a sweep, which holds what `penstock train --find-lr` writes as JSON. Raises OSError."""
    rates, low, high = sweep["rates"], min(sweep["rates"]), max(sweep["rates"])
    top = _ROOM * max(sweep["smoothed"][:_FIRST]) or 1.0
    suggestion = f"{sweep['suggestion']:.2g}"

    def line(label: str, kind: str, losses: Sequence[float]) -> Line:
        points = [(log_share(rate, low, high), loss / top) for rate, loss in zip(rates, losses, strict=True)]
        return Line(label=label, kind=kind, parts=[points])

    chart = LineChart(
        lines=[line("loss of each update", "work", sweep["losses"]), line("running mean", "loader", sweep["smoothed"])],
        x_axis="learning rate",
        y_axis="loss",
        x_ticks=list(log_ticks(low, high)),
        y_ticks=list(ticks(top)),
        marks=[(f"{100 * log_share(sweep['suggestion'], low, high):.2f}%", f"suggestion {suggestion}")],
        text=f"Line chart, loss over learning rate, from {low:.2g} to {high:.2g}. Suggestion: {suggestion}.",
    )
    caption = "The learning rate grows from update to update; the suggestion is where the running mean falls fastest."
    text = fill_template(
        kicker="Penstock learning-rate sweep",
        title=f"The loss falls fastest at a learning rate of {suggestion}",
        sentence="",
        about=f"{len(rates):,} updates",
        tiles=[],
        sections=[Section(title="Loss over learning rate", figures=[Figure(chart=chart, caption=caption)])],
    )
    path.write_text(text, "utf-8")
