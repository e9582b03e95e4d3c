"""`penstock doctor`: checks machine, installation and data before a run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.bench.checks.finding import DoctorSettings, Finding
from penstock.bench.commands import shared_options as common
from penstock.bench.commands.data_options import DataOptions
from penstock.bench.record.settings import Device

_INDENT = 37  # width of a state and a name


@common.takes_settings(settings=DoctorSettings, data_options=DataOptions)
def doctor(
    data: Annotated[
        str | None, typer.Argument(metavar="[DATA]", help=common.DATA_HELP + " Some are read.", parser=common.data_path)
    ] = None,
    device: Device = "auto",
    json_file: common.JsonFile = None,
    *,
    settings: dict[str, Any],
    data_options: dict[str, Any],
) -> None:
    """Check for problems that would stop or slow down a loader with these settings.

    Each line is ok, a warning or a failure, with the finding and its fix. Exit code 7 if anything fails.
    """
    from penstock.bench.checks.doctor import as_record, examine
    from penstock.loaders.front.backends import BACKEND_NAMES
    from penstock.loaders.system.json_file import write_json
    from penstock.pipelines.errors import EXIT_RESOURCE, count_text

    if settings["backend"] not in BACKEND_NAMES:
        raise ValueError(f"backend must be one of {', '.join(BACKEND_NAMES)}, got {settings['backend']!r}")
    device = common.resolve_device("auto") if device == "auto" else device
    asked = DoctorSettings(**settings, device=device, data_options=data_options)
    findings = []
    for finding in examine(asked, data):
        findings.append(finding)
        print_finding(finding)
    record = as_record(asked, findings)
    warnings = sum(finding.state == "warn" for finding in findings)
    counts = [(len(findings), "check"), (warnings, "warning"), (record["fails"], "failure")]
    typer.echo(f"doctor: {', '.join(count_text(*each) for each in counts)}")
    if json_file:
        write_json(json_file, record)
    if record["fails"]:
        raise typer.Exit(EXIT_RESOURCE)


def print_finding(finding: Finding) -> None:
    """Print the state of one finding, its text and, unless it is ok, the fix."""
    from penstock.bench.report.terminal import wrap_for_terminal

    colour = {"ok": "green", "warn": "yellow", "fail": "red"}[finding.state]
    typer.echo(
        f"{typer.style(f'{finding.state:5}', fg=colour)} {finding.name:30} {wrap_for_terminal(finding.found, _INDENT)}"
    )
    if finding.fix and finding.state != "ok":
        typer.echo(f"{'':{_INDENT}}-> {wrap_for_terminal(finding.fix, _INDENT)}")
