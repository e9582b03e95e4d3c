"""Defines what the doctor is asked about (DoctorSettings), and one thing that it finds (Finding)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from penstock.bench.record.bench_record import ALL_BACKENDS, BenchSettings
from penstock.loaders.front.create import loader_needs
from penstock.loaders.front.profile import load_profile
from penstock.loaders.run.workers.needs import Needs
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.spec import ImagePipeline, imagenet_train

State = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    """Say what was found, and what fixes it if it is not ok."""

    name: str
    state: State
    found: str
    fix: str | None = None


@dataclass(frozen=True, kw_only=True)
class DoctorSettings:
    """Describe the loader that the doctor is asked about; the fields are arguments of create_loader.

    Attributes:
        workers, prefetch: None for the backend's defaults.
        cache: a cache to look at as well, if it is there.
        on_bad_sample: "raise" makes bad images a failure, "replace" a warning.
        data_options: options of open_source for the data.
    """

    backend: str = "torch"
    workers: int | None = None
    prefetch: int | None = None
    batch_size: int = 64
    size: int = 224
    device: str = "cpu"
    cache: Path | None = None
    on_bad_sample: str = "raise"
    data_options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: BenchSettings) -> DoctorSettings:
        """Return the settings of the loader that a benchmark measures; of all backends the one that is always there."""
        return cls(
            backend="torch" if settings.backend == ALL_BACKENDS else settings.backend,
            workers=settings.workers,
            batch_size=settings.batch_size,
            size=settings.size,
            device=settings.device,
            cache=None if settings.cache is None else Path(settings.cache),
        )

    @property
    def pipeline(self) -> ImagePipeline:
        """The pipeline whose images are served."""
        return imagenet_train(self.size)

    @property
    def resolved(self) -> tuple[str, dict[str, Any]]:
        """The backend and its options, where "auto" is what the saved profile says, or torch."""
        backend, options = self.backend, {"workers": self.workers, "prefetch": self.prefetch}
        if backend == "auto":
            saved = load_profile()
            backend = saved.backend if saved else "hdf5" if self.cache else "torch"
            if saved:
                options = {name: getattr(saved, name) if said is None else said for name, said in options.items()}
        return backend, {name: value for name, value in options.items() if value is not None}

    def needs(self) -> Needs:
        """Return what such a loader takes of the machine. Raises ValueError for settings that cannot work."""
        backend, options = self.resolved
        size = (self.size, self.size)
        return loader_needs(backend, batch_size=self.batch_size, size=size, device=self.device, **options)


def run_check(name: str, check: Callable[[], str]) -> Finding:
    """Return ok with what `check` says, or a failure with the words of the LoaderError that it raises."""
    try:
        return Finding(name, "ok", check())
    except LoaderError as error:
        where = f" ({error.path!s})" if isinstance(error.path, str) else ""
        return Finding(name, "fail", error.cause + where, error.fix)
