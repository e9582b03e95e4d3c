"""Measurements of the loader's batches that are watched: what they take of the machine, what the workers do."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from penstock.bench.measure.clock import Rate, StepTimes
from penstock.bench.measure.network_time import Traffic
from penstock.bench.measure.resources import Resources, ResourceWatch
from penstock.bench.measure.worker_time import Span, WorkerTime, WorkerWatch
from penstock.bench.record.bench_record import BenchSettings, Measured
from penstock.loaders.loader import Loader

Key = tuple[str, str]  # kind, name of what is measured


class ResourceLog:
    """Collects, over all rounds, the resources and the worker time of each measurement.

    workers: number of the loader's workers.
    """

    def __init__(self, settings: BenchSettings, workers: int) -> None:
        self._settings, self._workers = settings, workers
        self._resources: dict[Key, list[Resources]] = {}
        self._spans: dict[Key, list[Span]] = {}

    def watched(
        self,
        key: Key,
        loader: Loader,
        measure: Callable[[Any], Rate | StepTimes],
        without: Callable[[], Collection[int]],
    ) -> Rate | StepTimes:
        """Return `measure(batches of the loader)` and log it; without: ids of processes that are no part of it."""
        workers = WorkerWatch(loader)
        wanted = self._settings
        with ResourceWatch(wanted.seconds, device=wanted.device, without=without, begun=workers.begin) as watch:
            result = measure(watch.watched(loader))
            span = workers.span()
        found = watch.resources()
        if found is not None:
            self._resources.setdefault(key, []).append(found)
        if span is not None:
            self._spans.setdefault(key, []).append(span)
        return result

    def added_to(self, measured: Measured) -> Measured:
        """Return `measured` with the resources and the worker time that were logged of it."""
        key = (measured.kind, measured.name)
        return replace(
            measured,
            resources=Resources.of_rounds(self._resources.get(key, [])),
            workers=WorkerTime.of(self._spans.get(key, []), self._workers),
            traffic=Traffic.of(self._spans.get(key, [])),
        )
