"""Plots as SVG inside a page: the page's own colours and fonts, the same bytes for the same figures."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import Any

from penstock.pipelines.errors import LoaderError

WIDE_PX, NARROW_PX = 900, 360  # widths at which text is as large as the page's
_DPI = 72  # a point is a pixel of the view box then

# What is drawn in these colours gets the page's, which differ by day and by night.
INK, SOFT, GRID = "#010101", "#020202", "#030303"
LOADER, BOTH, MODEL, OTHER, CEILING, WAIT = "#040404", "#050505", "#060606", "#070707", "#080808", "#090909"
BACKGROUND = "#0a0a0a"
_VARIABLES = {
    INK: "ink",
    SOFT: "soft",
    GRID: "grid",
    LOADER: "loader",
    BOTH: "both",
    MODEL: "model",
    OTHER: "other",
    CEILING: "ceiling",
    WAIT: "wait",
    BACKGROUND: "background",
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "penstock",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 13,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": SOFT,
    "axes.labelsize": 12,
    "axes.linewidth": 1,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": SOFT,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "grid.color": GRID,
    "grid.linewidth": 1,
    "figure.dpi": _DPI,
}


def require_matplotlib(what: str) -> type[Any]:
    """matplotlib's Figure. Raises LoaderError E-DEPENDENCY, which says `what` cannot be made, without it."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LoaderError("E-DEPENDENCY", f"{what}: {error}", fix="pip install 'penstock[report]'") from error
    return Figure


def svg(draw: Callable[[Any, float], None], *, width: int, height: float, name: str) -> str:
    """What `draw(figure, width)` draws, as one <svg> element that scales with its place; name: its class.

    width, height: of the view box. No identifier in it is that of another element of the page.
    """
    import matplotlib

    figure_class = require_matplotlib("no plot")
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs that its own font lacks: the browser has others
        figure = figure_class(figsize=(width / _DPI, height / _DPI))
        draw(figure, width)
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    return _inlined(written.getvalue(), width, height, name)


def _inlined(text: str, width: int, height: float, name: str) -> str:
    body = text[text.index("<g ") : text.rindex("</svg>")]
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', body))

    def identifier(found: re.Match[str]) -> str:
        return f' id="{name}-{found[1]}"' if found[1] in used else ""

    def tag(found: re.Match[str]) -> str:
        inside = re.sub(r' id="([^"]*)"', identifier, found[0])
        inside = re.sub(r'(url\(|href=")#', rf"\1#{name}-", inside).replace("xlink:href", "href")
        inside = re.sub(r"font-family: [^;\"]*; ?", "", inside)  # it is the page's
        for colour, variable in _VARIABLES.items():
            inside = inside.replace(colour, f"var(--{variable})")
        return inside

    body = re.sub(r"<[^>]*>", tag, body)  # what is written in the plot, which may look like anything, stays as it is
    return f'<svg class="{name}" viewBox="0 0 {width} {height:g}" preserveAspectRatio="xMinYMin meet">{body}</svg>'
