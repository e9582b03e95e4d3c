"""`penstock doctor`: looks at machine, installation and data before a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.bench.commands import shared_options as common
from penstock.bench.commands.data_options import takes_data_options

if TYPE_CHECKING:
    from penstock.bench.checks.finding import Finding

_INDENT = 37  # columns of a state and a name


@takes_data_options
def doctor(  # noqa: PLR0913  a command's options are its parameters
    data: Annotated[
        str | None, typer.Argument(metavar="[DATA]", help=common.DATA_HELP + " Some are read.", parser=common.data_path)
    ] = None,
    backend: common.Backend = "torch",
    cache: common.Cache = None,
    workers: common.Workers = None,
    prefetch: common.Prefetch = None,
    batch_size: common.BatchSize = 64,
    size: common.Size = 224,
    device: common.Device = "auto",
    on_bad_sample: Annotated[str, typer.Option(help="raise (bad images are a failure) or replace.")] = "raise",
    json_file: common.JsonFile = None,
    *,
    data_options: dict[str, Any],
) -> None:
    """Look for what would stop or slow down a loader with these settings, before it does.

    Each line is ok, a warning or a failure, with what was found and what fixes it. Exit code 7 if anything fails.
    """
    from penstock.bench.checks.doctor import as_record, examine
    from penstock.bench.checks.finding import DoctorSettings
    from penstock.loaders.front.backends import BACKEND_NAMES
    from penstock.loaders.system.json_file import write_json
    from penstock.pipelines.errors import EXIT_RESOURCE, count_text

    if backend not in BACKEND_NAMES:
        raise ValueError(f"backend must be one of {', '.join(BACKEND_NAMES)}, got {backend!r}")
    if on_bad_sample not in ("raise", "replace"):
        raise ValueError(f"on_bad_sample must be raise or replace, got {on_bad_sample!r}")
    settings = DoctorSettings(
        backend=backend,
        workers=workers,
        prefetch=prefetch,
        batch_size=batch_size,
        size=size,
        device=common.resolve_device("auto") if device == "auto" else device,
        cache=cache,
        on_bad_sample=on_bad_sample,
        data_options=data_options,
    )
    findings = []
    for finding in examine(settings, data):
        findings.append(finding)
        print_finding(finding)
    record = as_record(settings, findings)
    warnings = sum(finding.state == "warn" for finding in findings)
    counts = [(len(findings), "check"), (warnings, "warning"), (record["fails"], "failure")]
    typer.echo(f"doctor: {', '.join(count_text(*each) for each in counts)}")
    if json_file:
        write_json(json_file, record)
    if record["fails"]:
        raise typer.Exit(EXIT_RESOURCE)


def print_finding(finding: Finding) -> None:
    """Print one finding: its state, what was found and, unless it is ok, what fixes it."""
    from penstock.bench.report.terminal import wrap_for_terminal

    colour = {"ok": "green", "warn": "yellow", "fail": "red"}[finding.state]
    typer.echo(
        f"{typer.style(f'{finding.state:5}', fg=colour)} {finding.name:30} {wrap_for_terminal(finding.found, _INDENT)}"
    )
    if finding.fix and finding.state != "ok":
        typer.echo(f"{'':{_INDENT}}-> {wrap_for_terminal(finding.fix, _INDENT)}")
