"""Defines what the doctor is asked about (DoctorSettings), and one thing that it finds (Finding)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from penstock.bench.record.settings import (
    ALL_BACKENDS,
    Backend,
    BatchSize,
    BenchSettings,
    Cache,
    Prefetch,
    Size,
    Workers,
    check_fields,
    setting,
)

if TYPE_CHECKING:
    from penstock.loaders.run.workers.needs import Needs
    from penstock.pipelines.spec import ImagePipeline

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
        data_options: options of open_source for the data.
    """

    backend: Backend = "torch"
    cache: Cache = None
    workers: Workers = None
    prefetch: Prefetch = None
    batch_size: BatchSize = 64
    size: Size = 224
    device: str = "cpu"
    on_bad_sample: Literal["raise", "replace"] = setting("raise", "raise (bad images are a failure) or replace.")
    data_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)

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
        from penstock.pipelines.spec import imagenet_train

        return imagenet_train(self.size)

    @property
    def resolved(self) -> tuple[str, dict[str, Any]]:
        """The backend and its options, where "auto" is what the saved profile says, or torch."""
        from penstock.loaders.front.profile import load_profile

        backend, options = self.backend, {"workers": self.workers, "prefetch": self.prefetch}
        if backend == "auto":
            saved = load_profile()
            backend = saved.backend if saved else "hdf5" if self.cache else "torch"
            if saved:
                options = {name: getattr(saved, name) if said is None else said for name, said in options.items()}
        return backend, {name: value for name, value in options.items() if value is not None}

    def needs(self) -> Needs:
        """Return what such a loader takes of the machine. Raises ValueError for settings that cannot work."""
        from penstock.loaders.front.create import loader_needs

        backend, options = self.resolved
        size = (self.size, self.size)
        return loader_needs(backend, batch_size=self.batch_size, size=size, device=self.device, **options)


def run_check(name: str, check: Callable[[], str]) -> Finding:
    """Return ok with what `check` says, or a failure with the words of the LoaderError that it raises."""
    from penstock.pipelines.errors import LoaderError

    try:
        return Finding(name, "ok", check())
    except LoaderError as error:
        where = f" ({error.path!s})" if isinstance(error.path, str) else ""
        return Finding(name, "fail", error.cause + where, error.fix)
