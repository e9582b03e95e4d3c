"""Breaks lines for a terminal, which would break them within a word."""

from __future__ import annotations

import shutil
import sys
import textwrap

_LEAST_WIDTH = 20


def wrap_for_terminal(text: str, indent: int) -> str:
    """Return text broken between words, its further lines after `indent` spaces; as it is where no terminal shows it.

    The first line may begin up to three columns right of `indent`.
    """
    if not sys.stdout.isatty():
        return text
    width = max(_LEAST_WIDTH, shutil.get_terminal_size().columns - indent - 3)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False, drop_whitespace=True)
    return f"\n{'':{indent}}".join(lines)
