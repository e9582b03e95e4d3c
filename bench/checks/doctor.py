"""Checks machine, installation and data before a run: each finding is ok, a warning or a failure, with its fix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from penstock.bench.checks.doctor_data import data_findings
from penstock.bench.checks.doctor_folders import folder_findings
from penstock.bench.checks.doctor_machine import machine_findings
from penstock.bench.checks.doctor_software import software_findings
from penstock.bench.checks.finding import DoctorSettings, Finding, run_check
from penstock.bench.record.environment import describe_environment
from penstock.loaders.run.feed.copies import usable_device
from penstock.loaders.run.workers.needs import ensure


def ensure_loader_fits(settings: DoctorSettings, own_bytes: int) -> None:
    """Raise LoaderError E-FD, E-SHM, E-MEM or E-NOSPC unless such a loader fits next to the program's `own_bytes`.

    Commands call it before they allocate memory: later the kernel would kill the process. Settings that cannot work are
    left to create_loader.
    """
    try:
        needs = settings.needs()
    except (ValueError, KeyError):
        return
    ensure(needs._replace(own_bytes=needs.own_bytes + own_bytes))


def examine(settings: DoctorSettings, data: str | None) -> Iterator[Finding]:
    """Yield each finding as soon as it is known. Raises ValueError for settings that cannot work.

    data: a folder of images or a cache, read in part; None checks only machine and installation.
    """
    needs = settings.needs()
    yield run_check("device", lambda: f"{usable_device(settings.device)}")
    yield from machine_findings(settings, needs)
    yield from folder_findings()
    yield from software_findings(settings)
    if data is not None:
        yield from data_findings(settings, data)


def as_record(settings: DoctorSettings, findings: list[Finding]) -> dict[str, Any]:
    """Return settings, findings and environment as a JSON-serialisable record."""
    return {
        "settings": {**asdict(settings), "cache": None if settings.cache is None else str(settings.cache)},
        "findings": [finding._asdict() for finding in findings],
        "fails": sum(finding.state == "fail" for finding in findings),
        "environment": describe_environment(),
    }
