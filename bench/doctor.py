"""A look at machine, installation and data before a run: each finding is ok, a warning or a failure, with its cure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from penstock.bench.environment import describe_environment
from penstock.bench.options import given
from penstock.bench.record import BenchSettings
from penstock.loaders.create import loader_needs, usable_device
from penstock.loaders.preflight import Needs, ensure
from penstock.loaders.profile import load_profile
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.spec import ImagePipeline, imagenet_train

State = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    """What was found of one thing. fix: what mends it, where it is not ok."""

    name: str
    state: State
    found: str
    fix: str | None = None


@dataclass(frozen=True, kw_only=True)
class DoctorSettings:
    """The loader that is asked about, as create_loader takes it; workers, prefetch: None for the backend's defaults.

    cache: reads a cache, beside DATA; on_bad_sample: "raise" makes bad images a failure, "replace" a warning.
    """

    backend: str = "torch"
    workers: int | None = None
    prefetch: int | None = None
    batch_size: int = 64
    size: int = 224
    device: str = "cpu"
    cache: Path | None = None
    on_bad_sample: str = "raise"

    @classmethod
    def of(cls, settings: BenchSettings) -> DoctorSettings:
        """The loader that a benchmark measures."""
        return cls(
            backend=settings.backend,
            workers=settings.workers,
            batch_size=settings.batch_size,
            size=settings.size,
            device=settings.device,
            cache=None if settings.cache is None else Path(settings.cache),
        )

    @property
    def pipeline(self) -> ImagePipeline:
        """What is served."""
        return imagenet_train(self.size)

    @property
    def resolved(self) -> tuple[str, dict[str, Any]]:
        """The backend and its options; "auto" is what the saved profile says, or torch."""
        options = given(workers=self.workers, prefetch=self.prefetch)
        if self.backend != "auto":
            return self.backend, options
        saved = load_profile()
        if saved is None:
            return "hdf5" if self.cache else "torch", options
        return saved.backend, {**given(workers=saved.workers, prefetch=saved.prefetch), **options}

    def needs(self) -> Needs:
        """What such a loader takes. Raises ValueError for settings that cannot work."""
        backend, options = self.resolved
        size = (self.size, self.size)
        return loader_needs(backend, batch_size=self.batch_size, size=size, device=self.device, **options)


def ensure_room(settings: DoctorSettings, own_bytes: int) -> None:
    """Raises LoaderError E-FD, E-SHM, E-MEM or E-NOSPC unless such a loader fits beside `own_bytes` of the program's.

    For commands, before they take memory: afterwards the kernel would not ask, but kill. Leaves it to create_loader to
    refuse settings that cannot work.
    """
    try:
        needs = settings.needs()
    except (ValueError, KeyError):
        return
    ensure(needs._replace(own_bytes=needs.own_bytes + own_bytes))


def checked(name: str, check: Callable[[], str]) -> Finding:
    """ok with what `check` says, or a failure with the words of the LoaderError that it raises."""
    try:
        return Finding(name, "ok", check())
    except LoaderError as error:
        where = f" ({error.path!s})" if isinstance(error.path, str) else ""
        return Finding(name, "fail", error.cause + where, error.fix)


def examine(settings: DoctorSettings, data: Path | None) -> Iterator[Finding]:
    """Every finding, as soon as it is there. Raises ValueError for settings that cannot work.

    data: a folder of images or a cache, of which a sample is read; None for machine and installation alone.
    """
    from penstock.bench.doctor_data import data_findings
    from penstock.bench.doctor_folders import folder_findings
    from penstock.bench.doctor_machine import machine_findings
    from penstock.bench.doctor_software import software_findings

    needs = settings.needs()
    yield checked("device", lambda: f"{usable_device(settings.device)}")
    yield from machine_findings(settings, needs)
    yield from folder_findings()
    yield from software_findings(settings)
    if data is not None:
        yield from data_findings(settings, data)


def as_record(settings: DoctorSettings, findings: list[Finding]) -> dict[str, Any]:
    """JSON-serialisable."""
    told = {**asdict(settings), "cache": None if settings.cache is None else str(settings.cache)}
    return {
        "settings": told,
        "findings": [finding._asdict() for finding in findings],
        "fails": sum(finding.state == "fail" for finding in findings),
        "environment": describe_environment(),
    }
