"""Opens a source again from its data as that is now, in the process that opened it first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from penstock.pipelines.errors import LoaderError

Opened = TypeVar("Opened")


class Reopening(Generic[Opened]):
    """Call `open_again`; pickles as nothing, because workers never do, and it may hold large tables or signed URLs."""

    def __init__(self, open_again: Callable[..., Opened] | None = None) -> None:
        self._open_again = open_again

    def __call__(self, **options: Any) -> Opened:
        """Open the data again; `options` as the function takes them. Raises LoaderError E-STALE in a worker."""
        if self._open_again is None:
            cause = "the data has changed since it was indexed by another process"
            raise LoaderError("E-STALE", cause, fix="create the loader again")
        return self._open_again(**options)

    def __reduce__(self) -> tuple[object, ...]:
        return Reopening, ()
