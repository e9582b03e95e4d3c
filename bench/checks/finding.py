"""Defines the settings that the doctor checks (DoctorSettings) and one result (Finding)."""

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
    """The result of one check, with a fix if it is not ok."""

    name: str
    state: State
    found: str
    fix: str | None = None


@dataclass(frozen=True, kw_only=True)
class DoctorSettings:
    """Describe the loader to check; the fields are arguments of create_loader.

    Attributes:
        workers, prefetch: None for the backend's defaults.
        cache: a cache to check too, if it exists.
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
        """Return the settings of a benchmark's loader; for all backends, those of torch, which always exists."""
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
        """The pipeline of the loader."""
        from penstock.pipelines.spec import imagenet_train

        return imagenet_train(self.size)

    @property
    def resolved(self) -> tuple[str, dict[str, Any]]:
        """The backend and its options, with "auto" resolved by the saved profile."""
        from penstock.loaders.front.profile import load_profile

        backend, options = self.backend, {"workers": self.workers, "prefetch": self.prefetch}
        if backend == "auto":
            saved = load_profile()
            backend = saved.backend if saved else "hdf5" if self.cache else "torch"
            if saved:
                options = {name: getattr(saved, name) if given is None else given for name, given in options.items()}
        return backend, {name: value for name, value in options.items() if value is not None}

    def needs(self) -> Needs:
        """Return the resources that such a loader needs. Raises ValueError for settings that cannot work."""
        from penstock.loaders.front.advance_checks import loader_needs

        backend, options = self.resolved
        size = (self.size, self.size)
        return loader_needs(backend, batch_size=self.batch_size, size=size, device=self.device, **options)


def run_check(name: str, check: Callable[[], str]) -> Finding:
    """Return ok with the result of `check`, or a failure with the cause of the LoaderError that it raises."""
    from penstock.pipelines.errors import LoaderError

    try:
        return Finding(name, "ok", check())
    except LoaderError as error:
        where = f" ({error.path!s})" if isinstance(error.path, str) else ""
        return Finding(name, "fail", error.cause + where, error.fix)
