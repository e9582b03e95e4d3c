"""`penstock report`: writes the HTML page of a record of `penstock bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.bench.commands.shared_options import writable


def report(
    record: Annotated[Path, typer.Argument(metavar="RECORD.json", help="A record of `penstock bench --json`.")],
    page: Annotated[
        Path, typer.Argument(metavar="FILE.html", dir_okay=False, callback=writable, help="The page to write.")
    ],
) -> None:
    """Write the page of a benchmark record: tables, plots and verdict in one HTML file."""
    from penstock.bench.record.bench_record import read_record
    from penstock.bench.report.page import page as page_of
    from penstock.bench.report.page import write_page

    measured = read_record(record)
    try:
        write_page(page_of(measured), page)
    except (KeyError, TypeError, ValueError) as error:  # inconsistent parts
        cause = f"{type(error).__name__}: {error}"
        raise ValueError(f"{record}: not a record of `penstock bench` ({cause})") from None
