"""Says where a row of a list or table comes from, for errors."""

from __future__ import annotations

import os
from typing import NamedTuple

from penstock.pipelines.errors import LoaderError, hide_secrets, printable


class RowOrigin(NamedTuple):
    """Say what rows belong to.

    Attributes:
        table: path of the table; None for rows that are Python objects.
        unit: what the rows' numbers count, from 1: "line" or "row".
    """

    table: bytes | None = None
    unit: str = "row"

    def error(self, row: int, cause: str, fix: str | None = None) -> LoaderError:
        """Return the error of a row that cannot be used: `train.csv line 17: 3 columns, expected 2`."""
        name = "" if self.table is None else printable(os.path.basename(hide_secrets(self.table)))[1:-1] + " "
        fix = fix or f"correct this {self.unit}"
        return LoaderError("E-FORMAT", f"{name}{self.unit} {row:,}: {cause}", fix=fix, path=self.table)
