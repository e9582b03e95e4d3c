"""Prints records of `penstock bench` as one Markdown table: `python tests/studies/records_table.py RECORD.json ...`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from penstock.bench.run.pillow_loader import BASELINE_NAME

DALI_PIPELINE = "DALI's own pipeline (readers.file)"  # in records of Penstock up to 0.2
_COLUMNS = (
    "record",
    "images/s",
    "lowest to highest round",
    BASELINE_NAME,
    DALI_PIPELINE,
    "model alone",
    "loader + model",
    "share of the model's rate",
)


def records_table(paths: Iterable[Path]) -> str:
    """Return one row per record, in images per second; a dash if not measured. Raises ValueError for another file."""
    rows = [_COLUMNS, ("---", *["--:"] * (len(_COLUMNS) - 1)), *map(_row, paths)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(path: Path) -> tuple[str, ...]:
    try:
        measured = json.loads(path.read_text())["measured"]
        loader = _find(measured, kind="loader")
        both = _find(measured, kind="both")
        names = ({"name": BASELINE_NAME}, {"name": DALI_PIPELINE}, {"kind": "model"}, {"kind": "both"})
        rates = [_rate(_find(measured, **wanted)) for wanted in names]
        spread = f"{loader['low']:,.0f} to {loader['high']:,.0f}" if loader else "-"
        if both:
            rates[-1] += f" ({both['wait_share']:.0%} waiting)"
        model = _find(measured, kind="model")
        share = f"{both['images_per_s'] / model['images_per_s']:.3f}" if both and model else "-"
        return path.stem, _rate(loader), spread, *rates, share
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a record of `penstock bench` ({type(error).__name__}: {error})") from None


def _find(measured: list[dict[str, Any]], **wanted: str) -> Mapping[str, Any]:
    return next((found for found in measured if wanted.items() <= found.items()), {})


def _rate(measured: Mapping[str, Any]) -> str:
    return f"{measured['images_per_s']:,.0f}" if measured else "-"


def main() -> None:
    """Print the table of the records named on the command line."""
    try:
        print(records_table(map(Path, sys.argv[1:])))
    except (OSError, ValueError) as error:
        sys.exit(f"penstock: {error}")


if __name__ == "__main__":
    main()
