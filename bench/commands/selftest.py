"""`penstock selftest`: checks that an installation works, for use inside a container image."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.bench.commands import shared_options as common
from penstock.bench.commands.doctor import print_finding


def selftest(
    json_file: common.JsonFile = None,
    device: Annotated[
        str,
        typer.Option(help="A GPU, such as cuda: test DALI's decoding there, then kernels, worker threads, processes."),
    ] = "cpu",
) -> None:
    """Create a few images, load them with every installed engine, compare the streams, train for one step.

    Needs no data, HOME, network or GPU, and writes only to the temporary folder, except for findings about --device.
    Exit code 3 if two engines serve different streams, otherwise the code of the error.
    """
    from penstock.bench.checks.selftest import selftest as findings_of_selftest
    from penstock.bench.checks.selftest_device import SelftestFailure
    from penstock.bench.record.environment import describe_environment
    from penstock.loaders.system.json_file import write_json
    from penstock.pipelines.errors import EXIT_DATA

    environment = describe_environment()
    packages = environment["packages"]
    assert isinstance(packages, dict)
    typer.echo(f"python {environment['python']}, " + ", ".join(f"{name} {v}" for name, v in packages.items()))
    findings = []
    try:
        for finding in findings_of_selftest(device):
            findings.append(finding)
            print_finding(finding)
    except SelftestFailure as error:
        typer.echo(f"selftest: {error}", err=True)
        raise typer.Exit(EXIT_DATA) from None
    missing = sum(finding.state == "warn" for finding in findings)
    typer.echo("selftest: this installation works" + (f"; {missing} optional parts are missing" if missing else ""))
    if json_file:
        record = {"findings": [finding._asdict() for finding in findings], "environment": environment}
        write_json(json_file, record)
