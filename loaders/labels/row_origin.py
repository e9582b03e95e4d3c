"""Says where a row of a list or table comes from, for errors."""

from __future__ import annotations

import os
from typing import Protocol

from penstock.pipelines.errors import LoaderError, hide_secrets, printable


class Fail(Protocol):
    """Return the error to raise for a label or row by its number: what is wrong with it, and what to do."""

    def __call__(self, row: int, cause: str, fix: str | None = None, /) -> Exception: ...


def blame_rows(table: bytes | None = None, unit: str = "row") -> Fail:
    """Return what makes the error of a row that cannot be used: `train.csv line 17: 3 columns, expected 2`.

    table: path of the table; None for rows that are Python objects. unit: what the rows' numbers count, from 1: "line"
    or "row".
    """

    def fail(row: int, cause: str, fix: str | None = None) -> LoaderError:
        name = "" if table is None else printable(os.path.basename(hide_secrets(table)))[1:-1] + " "
        return LoaderError("E-FORMAT", f"{name}{unit} {row:,}: {cause}", fix=fix or f"correct this {unit}", path=table)

    return fail
