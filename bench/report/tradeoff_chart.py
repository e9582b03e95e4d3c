"""The plot of the cache trade-off: bytes of an image against images/s, each way of storing by its name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from penstock.bench.report.svg import BOTH, INK, LOADER, NARROW_PX, OTHER, SOFT, WIDE_PX, svg

_PLOT_PX, _LINE_PX = 370, 20
_MARGINS = {"left": 62, "right": 12, "top": 14, "bottom": 44}
# Where a label may stand: pixels from its point, and how it is aligned there; the first that is free is taken.
_Place = tuple[float, float, str, str]
_PLACES: tuple[_Place, ...] = tuple(
    (dx, dy, ha, va)
    for far in (1, 2.6, 4.2)
    for dx, dy, ha, va in (
        (10, 0, "left", "center"),
        (-10, 0, "right", "center"),
        (8, 8 * far, "left", "bottom"),
        (8, -8 * far, "left", "top"),
        (-8, 8 * far, "right", "bottom"),
        (-8, -8 * far, "right", "top"),
        (0, 10 * far, "center", "bottom"),
        (0, -10 * far, "center", "top"),
    )
)


def tradeoff_plot(offers: Sequence[Mapping[str, Any]], name: str) -> tuple[str, str]:
    """The offers of a CacheAdvice as <svg>: wide, with names beside the points, and narrow, with letters and a key."""
    names = [f"{offer['name']}, {quality_text(offer)}" for offer in offers]
    wide = partial(_draw, offers, names, ())
    letters = [chr(ord("A") + number) for number in range(len(offers))]
    key = [f"{letter}   {text}" for letter, text in zip(letters, names, strict=True)]
    narrow = partial(_draw, offers, letters, key)
    return (
        svg(wide, width=WIDE_PX, height=_PLOT_PX, name=f"{name}-wide"),
        svg(narrow, width=NARROW_PX, height=_PLOT_PX + _LINE_PX * len(key), name=f"{name}-narrow"),
    )


def quality_text(offer: Mapping[str, Any]) -> str:
    """Whether it is lossless, and how near to the source it is if not."""
    psnr = offer.get("psnr_db")
    return "lossless" if offer["lossless"] else "lossy" if psnr is None else f"{psnr:.1f} dB"


def _draw(
    offers: Sequence[Mapping[str, Any]], texts: Sequence[str], key: Sequence[str], figure: Any, width: float
) -> None:
    below = _LINE_PX * len(key)
    height = _PLOT_PX + below
    sides = {name: pixels + below * (name == "bottom") for name, pixels in _MARGINS.items()}
    across, up = width - sides["left"] - sides["right"], height - sides["top"] - sides["bottom"]
    axes = figure.add_axes((sides["left"] / width, sides["bottom"] / height, across / width, up / height))
    points = [(offer["bytes_an_image"] / 1e3, float(offer["images_per_s"])) for offer in offers]
    highest = max([rate for _, rate in points] + [max(offer["rounds"]) for offer in offers])
    axes.set(xlim=(0, 1.12 * max(size for size, _ in points) or 1.0), ylim=(0, 1.12 * highest or 1.0))
    axes.set(ylabel="images/s")
    axes.set_xlabel("kB an image on the disk", loc="left")
    axes.grid()
    for spread in ("x", "y"):
        axis = getattr(axes, f"{spread}axis")
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
    for offer, (size, rate) in zip(offers, points, strict=True):
        marker, colour = _mark(offer)
        axes.plot([size, size], [min(offer["rounds"]), max(offer["rounds"])], color=colour, linewidth=1.5)
        axes.plot([size], [rate], marker, color=colour, markersize=9)
    for number, line in enumerate(key):
        y = below - _LINE_PX * (number + 0.5)
        figure.text(8 / width, y / height, line, color=INK, va="center_baseline")
    _label(figure, axes, texts, points)


def _mark(offer: Mapping[str, Any]) -> tuple[str, str]:
    if offer["name"] == "files":
        return "s", OTHER
    return ("o", LOADER) if offer["lossless"] else ("D", BOTH)


def _label(figure: Any, axes: Any, texts: Sequence[str], points: list[tuple[float, float]]) -> None:
    """A name beside each point, clear of the other points and names, and nearest to its own point."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.transforms import Bbox

    renderer: Any = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    inside = axes.get_window_extent(renderer)
    at = [axes.transData.transform(point) for point in points]
    taken = [Bbox.from_extents(x - 7, y - 7, x + 7, y + 7) for x, y in at]

    def box_at(number: int, place: _Place) -> Any:
        trial = _written(axes, texts[number], points[number], place)
        box = trial.get_window_extent(renderer)
        trial.remove()
        return box

    for number in sorted(range(len(points)), key=lambda number: -at[number][1]):
        boxes = {place: box_at(number, place) for place in _PLACES}
        costs = [_cost(boxes[place], number, at, taken, inside) for place in _PLACES]
        place = _PLACES[costs.index(min(costs))]
        far = abs(place[1]) > 10
        line = {"arrowstyle": "-", "color": SOFT, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 5} if far else None
        taken.append(boxes[place])
        _written(axes, texts[number], points[number], place, color=INK, arrowprops=line)


def _written(axes: Any, text: str, point: tuple[float, float], place: _Place, **more: Any) -> Any:
    dx, dy, ha, va = place
    return axes.annotate(text, point, xytext=(dx, dy), textcoords="offset points", ha=ha, va=va, size=12, **more)


def _cost(box: Any, number: int, at: Sequence[Any], taken: Sequence[Any], inside: Any) -> float:
    """How bad a place of a label is: what it covers, what of it lies outside, how many other points seem meant."""
    covered = sum(_overlap(box, other) for k, other in enumerate(taken) if k != number)
    away = [_distance(point, box) for point in at]
    unclear = sum(other < away[number] + 6 for k, other in enumerate(away) if k != number)
    return float(covered + 4 * (box.width * box.height - _overlap(box, inside)) + 150 * unclear)


def _distance(point: Sequence[float], box: Any) -> float:
    dx = max(box.x0 - point[0], 0.0, point[0] - box.x1)
    dy = max(box.y0 - point[1], 0.0, point[1] - box.y1)
    return math.hypot(dx, dy)


def _overlap(first: Any, second: Any) -> float:
    width = min(first.x1, second.x1) - max(first.x0, second.x0)
    height = min(first.y1, second.y1) - max(first.y0, second.y0)
    return float(max(0.0, width) * max(0.0, height))
