"""The plot of a learning-rate sweep: loss over learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.bench.report.svg import require_matplotlib

_FIRST = 10  # updates, before the loss diverges: they set the scale


def plot_sweep(sweep: Mapping[str, Any], file: Path) -> None:
    """Draw the sweep, as `penstock train --find-lr` writes it, as a PNG.

    Raises LoaderError E-DEPENDENCY without matplotlib, OSError.
    """
    figure = require_matplotlib("no plot of the sweep")(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(sweep["rates"], sweep["losses"], color="0.8", label="loss of each update")
    axes.plot(sweep["rates"], sweep["smoothed"], label="running mean")
    axes.axvline(sweep["suggestion"], linestyle="--", label=f"suggestion {sweep['suggestion']:.2g}")
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss", ylim=(0, 1.5 * max(sweep["smoothed"][:_FIRST])))
    axes.legend()
    figure.savefig(file)
