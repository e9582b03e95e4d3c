"""Names the origin of a row of a list or table in errors."""

from __future__ import annotations

import os
from typing import Protocol

from penstock.pipelines.errors import LoaderError, hide_secrets, printable


class Fail(Protocol):
    """Returns the error to raise for a label or row, from its number, the cause and the fix."""

    def __call__(self, row: int, cause: str, fix: str | None = None, /) -> Exception: ...


class RowOrigin:
    """Makes the error for an unusable row: `train.csv line 17: 3 columns, expected 2`.

    table: path of the table; None for rows that are Python objects. unit: "line" or "row", which the numbers count.
    """

    def __init__(self, table: bytes | None = None, unit: str = "row") -> None:
        self._table, self._unit = table, unit

    def __call__(self, row: int, cause: str, fix: str | None = None) -> LoaderError:
        """Return the error for a row."""
        fix = fix or f"correct this {self._unit}"
        return LoaderError("E-FORMAT", f"{self.where(row)}: {cause}", fix=fix, path=self._table)

    def where(self, row: int) -> str:
        """Return a row's name in messages."""
        name = "" if self._table is None else printable(os.path.basename(hide_secrets(self._table)))[1:-1] + " "
        return f"{name}{self._unit} {row:,}"


def where_is(fail: Fail, row: int) -> str:
    """Return a row's name in messages, given the function that makes its errors."""
    where = getattr(fail, "where", None)
    return f"sample {row:,}" if where is None else str(where(row))
