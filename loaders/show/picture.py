"""Picture: a grid of samples with their labels and names, as an image and in a terminal."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.loaders.show.drawing import View, draw_view, load_font
from penstock.pipelines.errors import one_line, printable

if TYPE_CHECKING:
    from PIL import Image

_GAP = 8  # pixels between samples
_LINE = 15  # height of a line of text, in pixels
_MOST_LINES = 6
_PAPER, _INK = (255, 255, 255), (0, 0, 0)
_FORMATS = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".webp": "WEBP",
    ".gif": "GIF",
    ".bmp": "BMP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".pdf": "PDF",
}
_CELL_COLUMNS = 30  # width of a sample in a terminal, in characters


def picture_format(path: str | os.PathLike[str]) -> str:
    """Return Pillow's name of the format of a picture's file. Raises ValueError for an unknown suffix."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in _FORMATS:
        raise ValueError(f"a picture is saved as one of {', '.join(_FORMATS)}, got {printable(os.fspath(path))}")
    return _FORMATS[suffix]


class Tile(NamedTuple):
    """A sample: its views, and the lines of text below them; the first one is the label."""

    views: tuple[View, ...]
    lines: tuple[str, ...]


class Picture:
    """A grid of samples, from `Loader.show`.

    The last line of a notebook's cell shows it, `rich.print` draws it in a terminal, `save` writes a file.

    Attributes:
        tiles: the samples.
    """

    def __init__(self, tiles: Sequence[Tile]) -> None:
        self.tiles = tuple(tiles)

    def __len__(self) -> int:
        return len(self.tiles)

    @property
    def lines(self) -> list[str]:
        """The label, name and fields of each sample, as one line of text."""
        return [f"{number}: {'; '.join(map(one_line, tile.lines))}" for number, tile in enumerate(self.tiles)]

    def __repr__(self) -> str:
        return "\n".join([f"<Picture of {len(self)} samples; save('look.png') writes it>", *self.lines])

    @cached_property
    def _drawn(self) -> list[list[Image.Image]]:
        return [list(map(draw_view, tile.views)) for tile in self.tiles]

    @cached_property
    def image(self) -> Image.Image:
        """The picture as an image of Pillow, RGB."""
        from PIL import Image, ImageDraw

        width = max((sum(view.width for view in views) + 2 * (len(views) - 1) for views in self._drawn), default=1)
        heights = [max(view.height for view in views) for views in self._drawn]
        below = _LINE * min(_MOST_LINES, max((len(tile.lines) for tile in self.tiles), default=0)) + _GAP
        columns = max(1, round(math.sqrt(len(self) * (max(heights, default=1) + below) / (width + _GAP))))
        of_rows = [max(heights[first : first + columns]) for first in range(0, len(self), columns)]
        paper = Image.new(
            "RGB", (min(columns, len(self)) * (width + _GAP) + _GAP, sum(of_rows) + len(of_rows) * below + _GAP), _PAPER
        )
        canvas, font = ImageDraw.Draw(paper), load_font()
        for number, (tile, views) in enumerate(zip(self.tiles, self._drawn, strict=True)):
            row, column = divmod(number, columns)
            left, top = _GAP + column * (width + _GAP), _GAP + sum(of_rows[:row]) + row * below
            for at, line in enumerate(tile.lines[:_MOST_LINES]):
                text = _shorten(one_line(line), width, font)
                canvas.text((left, top + of_rows[row] + at * _LINE), text, fill=_INK, font=font)
            for view in views:
                paper.paste(view, (left, top))
                left += view.width + 2
        return paper

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file; its suffix is the format, such as .png. Raises ValueError for other suffixes."""
        self.image.save(path, picture_format(path))

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.image.save(data, "PNG")
        return data.getvalue()

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """Draw the samples with half blocks, two pixels per character, and their text; without colours only this."""
        from rich.columns import Columns
        from rich.console import Group
        from rich.text import Text

        width = max(8, min(_CELL_COLUMNS, options.max_width - 2))
        cells = []
        for tile, views in zip(self.tiles, self._drawn, strict=True):
            lines = [Text(one_line(line), no_wrap=True, overflow="ellipsis") for line in tile.lines[:_MOST_LINES]]
            drawn = [_half_blocks(views, width)] if console.color_system else []
            cells.append(Group(*drawn, *lines, Text()))
        yield Columns(cells, width=width, padding=(0, 1))


def _half_blocks(views: Sequence[Image.Image], width: int) -> Any:
    """Return views next to each other as text, `width` characters wide."""
    from PIL import Image
    from rich.color import Color
    from rich.style import Style
    from rich.text import Text

    text, share = Text(no_wrap=True), max(1, width // len(views))
    sizes = [(share, max(2, share * view.height // view.width // 2 * 2)) for view in views]
    small = [
        np.asarray(view.resize(size, Image.Resampling.BOX)).tolist() for view, size in zip(views, sizes, strict=True)
    ]
    for row in range(0, max(map(len, small)), 2):
        for pixels in small:
            if row >= len(pixels):
                text.append(" " * share)
                continue
            for upper, lower in zip(pixels[row], pixels[row + 1], strict=True):
                text.append("▀", Style(color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower)))
        text.append("\n")
    text.right_crop(1)
    return text


def _shorten(text: str, width: int, font: Any) -> str:
    """Return the text, or its beginning and end, so that it is at most `width` pixels wide."""
    if font.getlength(text) <= width:
        return text
    kept = len(text)
    while kept > 2 and font.getlength(_cut(text, kept)) > width:
        kept -= 1
    return _cut(text, kept)


def _cut(text: str, kept: int) -> str:
    return f"{text[: kept // 3]}...{text[len(text) - (kept - kept // 3) :]}"
