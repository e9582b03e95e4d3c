"""The loader that a run measures: opened once or for each measurement, with its resources watched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from penstock.bench.probe.search.candidate import Candidate, LoaderOpener
from penstock.bench.record.bench_record import Measured
from penstock.bench.record.clock import Rate, StepTimes
from penstock.bench.record.loader_time import Span, Traffic, WorkerTime
from penstock.bench.record.resources import Resources, ResourceWatch
from penstock.bench.record.settings import BenchSettings
from penstock.bench.run.rounds import Key
from penstock.loaders.data.sources.contract import is_fetching
from penstock.loaders.front.loader import Loader
from penstock.loaders.order.ledger import EpochLedger
from penstock.loaders.run.metrics.stats import LoaderStats


class LoaderTurns:
    """Lends the loader to one measurement at a time, and collects the resources that each uses.

    It stays open in between, unless the data is fetched ahead: then it would keep fetching while others are measured,
    and its next measurement would begin with fetched data.

    stack: closes a loader that stays open.
    """

    def __init__(self, opener: LoaderOpener, candidate: Candidate, stack: ExitStack) -> None:
        self._opener, self._candidate = opener, candidate
        self._ledgers: list[EpochLedger] = []
        self._resources: dict[Key, list[Resources]] = defaultdict(list)
        self._spans: dict[Key, list[Span]] = defaultdict(list)
        self._open: Loader | None = None
        if not is_fetching(opener.source(cached=candidate.cached)):
            self._open = stack.enter_context(opener.open(candidate))
        with self.turn() as loader:
            self._about = loader.describe()

    @property
    def about(self) -> dict[str, object]:
        """The loader's description of itself."""
        return self._about if self._open is None else self._open.describe()

    @contextmanager
    def turn(self) -> Iterator[Loader]:
        """Yield the loader."""
        if self._open is not None:
            yield self._open
            return
        with self._opener.open(self._candidate) as loader:
            yield loader
            self._ledgers += loader.ledgers()

    def measure(
        self,
        key: Key,
        settings: BenchSettings,
        measure: Callable[[Any], Rate | StepTimes],
        without: Callable[[], Collection[int]],
    ) -> Rate | StepTimes:
        """Return `measure(batches of the loader)`; without(): ids of processes that are not part of the loader."""
        seconds, device = settings.seconds, settings.device
        begun: list[LoaderStats] = []

        def begin() -> None:
            begun.append(loader.stats())

        with self.turn() as loader, ResourceWatch(seconds, device=device, without=without, begun=begin) as watch:
            result = measure(watch.watched(loader))
            self._spans[key] += [Span(begin, loader.stats()) for begin in begun]
        self._resources[key] += filter(None, [watch.resources()])
        return result

    def with_resources(self, measured: Measured) -> Measured:
        """Return `measured` with the resources, the workers' time and the traffic of its measurements."""
        key = (measured.kind, measured.name)
        return replace(
            measured,
            resources=Resources.of_rounds(self._resources[key]),
            workers=WorkerTime.of(self._spans[key], self._candidate.workers),
            traffic=Traffic.of(self._spans[key]),
        )

    def ledgers(self) -> list[EpochLedger]:
        """Return the ledgers of all epochs that were begun."""
        return self._ledgers if self._open is None else self._open.ledgers()
