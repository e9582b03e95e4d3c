"""A record of `penstock bench` read back from the document that was written of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from penstock.bench.measure.resources import Resources
from penstock.bench.measure.worker_time import WorkerTime
from penstock.bench.record.record import BenchRecord, BenchSettings, Measured

Made = TypeVar("Made")


def restored(document: Mapping[str, Any]) -> BenchRecord:
    """The measurements, and what they were made on; what an older version did not write has its default.

    Raises KeyError, TypeError or ValueError for what is no such document.
    """
    measured = tuple(
        _made(Measured, each, resources=_resources(each), workers=_worker_time(each)) for each in document["measured"]
    )
    settings = _made(BenchSettings, document["settings"])
    return _made(
        BenchRecord,
        {name: dict(document[name]) for name in ("data", "environment", "loader")},
        workers=int(document["workers"]),
        decoder=str(document["decoder"]),
        settings=settings,
        measured=measured,
        options=dict(document.get("options", {})),
        notes=tuple(map(str, document.get("notes", ()))),
    )


def _resources(measured: Mapping[str, Any]) -> Resources | None:
    taken = measured.get("resources")
    return _made(Resources, taken) if taken else None


def _worker_time(measured: Mapping[str, Any]) -> WorkerTime | None:
    told = measured.get("workers")
    return _made(WorkerTime, told) if told else None


def _made(of: type[Made], values: Mapping[str, Any], **more: Any) -> Made:
    known = {field.name for field in fields(of)}  # type: ignore[arg-type]
    return of(**{**{name: value for name, value in values.items() if name in known}, **more})
