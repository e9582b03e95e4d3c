"""Warnings that point to the user's line that called Penstock."""

from __future__ import annotations

import sys
import warnings


def warn_user(text: str, kind: type[Warning] = UserWarning) -> None:
    """Warn at the first caller outside this package, so that users see their own line and can filter by it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("penstock."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, kind, stacklevel=level)
