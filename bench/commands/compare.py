"""`penstock compare`: shows two records of `penstock bench` side by side."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.bench.commands import shared_options as common

if TYPE_CHECKING:
    from penstock.bench.record.comparison import Comparison


def compare(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="A record of `penstock bench --json`.")],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="Another record; ratios are B / A.")],
    fail_below: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Exit with 3 if the loader, alone or with the model, is below this ratio, beyond the noise."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Compare records even if machine or settings differ.")] = False,
    as_json: common.AsJson = False,
) -> None:
    """Show what became faster or slower between two benchmark records, and what is only noise.

    A change is within the noise if the median of each record lies inside the spread of the other's rounds.
    """
    from penstock.bench.record import comparison
    from penstock.bench.record.bench_record import read_record
    from penstock.pipelines.errors import EXIT_DATA

    found = comparison.compare(read_record(before), read_record(after))
    if found.differs and not force:
        raise ValueError(
            f"the records come from different runs (--force compares them anyway): {'; '.join(found.differs)}"
        )
    slower = [] if fail_below is None else found.slower(fail_below)
    if as_json:
        names = [change.name for change in slower]
        typer.echo(json.dumps({**asdict(found), "fail_below": fail_below, "slower": names}, indent=2))
    else:
        _print(found)
        for change in slower:
            typer.echo(f"below {fail_below:g} times: {change.name}, {change.ratio:.3f} times")
    if slower:
        raise typer.Exit(EXIT_DATA)


def _print(found: Comparison) -> None:
    from penstock.bench.report.section_types import Section, Table
    from penstock.bench.report.terminal import print_sections

    rows = []
    for c in found.changes:
        before, after = (
            f"{rate:,.0f} ({low:,.0f} to {high:,.0f})"
            for rate, (low, high) in ((c.before, c.before_spread), (c.after, c.after_spread))
        )
        verdict = "within the noise" if c.within_noise else "faster" if c.ratio > 1 else "slower"
        rows.append((c.kind, c.name, before, after, f"{c.ratio:.3f}", verdict))
    columns = [("what", "short"), ("measured", "short"), ("A, images/s", "short"), ("B, images/s", "short")]
    table = Table(caption="", columns=[*columns, ("B to A", "number"), ("", "short")], rows=rows)
    notes = [f"Different: {difference}" for difference in found.differs]
    notes += [f"Versions: {version}" for version in found.versions]
    print_sections([Section(title="", tables=[table], notes=notes)])
