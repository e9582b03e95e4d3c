"""Says where a row of a list or table comes from, for errors."""

from __future__ import annotations

import os
from typing import Protocol

from penstock.pipelines.errors import LoaderError, hide_secrets, printable


class Fail(Protocol):
    """Return the error to raise for a label or row by its number: what is wrong with it, and what to do."""

    def __call__(self, row: int, cause: str, fix: str | None = None, /) -> Exception: ...


class RowOrigin:
    """Make the error of a row that cannot be used: `train.csv line 17: 3 columns, expected 2`.

    table: path of the table; None for rows that are Python objects. unit: what the rows' numbers count: "line" or
    "row".
    """

    def __init__(self, table: bytes | None = None, unit: str = "row") -> None:
        self._table, self._unit = table, unit

    def __call__(self, row: int, cause: str, fix: str | None = None) -> LoaderError:
        """Return the error of a row."""
        fix = fix or f"correct this {self._unit}"
        return LoaderError("E-FORMAT", f"{self.where(row)}: {cause}", fix=fix, path=self._table)

    def where(self, row: int) -> str:
        """Return what messages call a row."""
        name = "" if self._table is None else printable(os.path.basename(hide_secrets(self._table)))[1:-1] + " "
        return f"{name}{self._unit} {row:,}"


def where_is(fail: Fail, row: int) -> str:
    """Return what messages call a row of which `fail` makes the errors."""
    where = getattr(fail, "where", None)
    return f"sample {row:,}" if where is None else str(where(row))
