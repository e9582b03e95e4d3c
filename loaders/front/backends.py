"""The backends by name: how each opens its engine, which options it accepts, and how it prepares a source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from penstock.loaders.cache_build.open_or_build import SOURCE_OPTIONS, prepare_whole
from penstock.loaders.dali import dali_engine
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.front.loader_options import SourceOptions
from penstock.loaders.make.batch_planner import BatchPlanner
from penstock.loaders.make.engine_contract import Engine
from penstock.loaders.make.layout import BatchLayout
from penstock.loaders.run.engine.choose import needs_of, open_engine
from penstock.loaders.run.engine.options import WorkerOptions
from penstock.loaders.run.engine.process_engine import ProcessOptions
from penstock.loaders.run.workers.needs import Needs
from penstock.pipelines.messages.foreign_names import cure_of_name
from penstock.pipelines.spec import PIPELINE_SETTINGS


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A backend: everything in which loaders differ.

    Attributes:
        name: the name that users pass.
        options: class of its options.
        open_engine: (planner, options) -> Engine that runs the sample stage.
        needs: (options, layout of a batch) -> the resources that the engine needs.
        prepare_source: (source, cache=, encoding=) -> the source to read instead, such as a cache; None if the backend
            reads every source directly.
        has_own_decoder: whether it uses its own JPEG decoder, which does not report repairs.
    """

    name: str
    options: type[WorkerOptions]
    open_engine: Callable[[BatchPlanner, Any], Engine]
    needs: Callable[[Any, BatchLayout], Needs]
    prepare_source: Callable[..., Source] | None = None
    has_own_decoder: bool = False

    def parse(self, options: Mapping[str, Any]) -> tuple[WorkerOptions, dict[str, object]]:
        """Return the checked options of the engine, and the options of prepare_source. Raises ValueError."""
        unknown = [name for name in options if name not in self.option_names]
        if unknown:
            cures = dict.fromkeys(filter(None, map(self._cure, unknown)))
            fix = "; ".join(cures) or f"it accepts {', '.join(self.option_names)}"
            raise ValueError(f"backend {self.name!r} has no option {', '.join(unknown)}: {fix}")
        of_source = {name: value for name, value in options.items() if name in self._source_options}
        of_engine = {name: value for name, value in options.items() if name not in of_source}
        return self.options(**of_engine), of_source

    def _cure(self, name: str) -> str | None:
        others = [backend for backend in _RECORDS if backend is not self and name in backend.option_names]
        if others:
            return f"{name} is an option of {' and '.join(f'backend={backend.name!r}' for backend in others)}"
        return cure_of_name(name, [*self.option_names, *OF_EVERY_BACKEND], PIPELINE_SETTINGS)

    @property
    def option_names(self) -> tuple[str, ...]:
        """Names of the options of the engine and of prepare_source."""
        return (*(field.name for field in fields(self.options)), *self._source_options)

    @property
    def _source_options(self) -> tuple[str, ...]:
        return SOURCE_OPTIONS if self.prepare_source is not None else ()


# Arguments of create_loader, to suggest for misspelled or foreign names.
OF_EVERY_BACKEND = (
    *("pipeline", "batch_size", "sizes", "buckets", "patches", "device", "dtype", "seed", "shuffle", "weights"),
    *("epoch_samples", "drop_last", "pad", "rank", "world_size", "decoder", "on_bad_sample", "on_repaired", "max_bad"),
    *("with_index", "with_geometry", "memory_format", "transform", "batch_transform", "transform_moves", "tokenize"),
    *("captions", "profile", "backend", "order", *SourceOptions.__annotations__),
)
_RECORDS = (
    Backend(name="torch", options=ProcessOptions, open_engine=partial(open_engine, "torch"), needs=needs_of),
    Backend(
        name="hdf5",
        options=ProcessOptions,
        open_engine=partial(open_engine, "hdf5"),
        needs=needs_of,
        prepare_source=prepare_whole,
    ),
    Backend(
        name="dali",
        options=dali_engine.DaliOptions,
        open_engine=dali_engine.open_engine,
        needs=dali_engine.needs_of,
        prepare_source=dali_engine.prepare_source,
        has_own_decoder=True,
    ),
)
BACKENDS = {backend.name: backend for backend in _RECORDS}
BACKEND_NAMES = ("auto", *BACKENDS)
