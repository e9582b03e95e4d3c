"""Warnings that point to the user's line that called Penstock."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

Warned = tuple[tuple[str, type[Warning]], ...]  # texts with their categories
_BACKGROUND = ("threading", "concurrent.", "multiprocessing.", "torch.")  # modules that call a thread's function
_here = threading.local()  # `warned`: where this thread collects warnings
_shown: dict[Any, Any] = {}  # registry of warnings without a user's line


def warn_user(text: str, kind: type[Warning] = UserWarning) -> None:
    """Warn at the first caller outside this package, so that users see their own line and can filter by it.

    In a thread of this package no such caller exists. Workers collect their warnings for the consumer; others name the
    package instead of a line.
    """
    warned: dict[str, type[Warning]] | None = getattr(_here, "warned", None)
    if warned is not None:
        warned[text] = kind
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("penstock."):
        frame, level = frame.f_back, level + 1
    if frame.f_globals.get("__name__", "").startswith(_BACKGROUND):
        warnings.warn_explicit(text, kind, "penstock", 1, registry=_shown)
    else:
        warnings.warn(text, kind, stacklevel=level)


@contextlib.contextmanager
def collect_warnings() -> Iterator[dict[str, type[Warning]]]:
    """Collect the warnings of this thread, text -> category, instead of showing them."""
    outer, warned = getattr(_here, "warned", None), dict[str, type[Warning]]()
    _here.warned = warned
    try:
        yield warned
    finally:
        _here.warned = outer
