"""Warns at the line of the program that called Penstock, whichever module of it found what is to be warned of."""

from __future__ import annotations

import sys
import warnings


def warn_user(text: str, kind: type[Warning] = UserWarning) -> None:
    """Warn at the first caller outside of this package, so that users see a line of theirs and can filter by it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("penstock."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, kind, stacklevel=level)
