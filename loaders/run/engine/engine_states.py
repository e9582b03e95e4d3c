"""EngineStates: the state of an engine (not started, at a known place, between two batches, or closed)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import torch

from penstock.loaders.data.sources.source_faults import name_sample
from penstock.loaders.make.batch_planner import BatchPlanner
from penstock.loaders.make.engine_contract import HostBatch
from penstock.loaders.order.cursor import NOWHERE, Cursor
from penstock.loaders.run.engine.slots import BatchSlots
from penstock.loaders.run.engine.work_items import Produced
from penstock.loaders.run.workers.worker_progress import WorkerTraceback
from penstock.loaders.system.recycled_memory import Recycler
from penstock.pipelines.errors import LoaderError


class EngineStates:
    """Base class of engines with their states: not started, before a known batch, between two batches, or closed.

    An engine forgets its place (`_next`) before anything that Ctrl-C can interrupt. The loader then seeks to the place
    again, so no batch is lost.

    Attributes:
        name: name of the backend, for errors.
    """

    def __init__(self, name: str, planner: BatchPlanner) -> None:
        self.name, self._planner = name, planner
        self._next = NOWHERE
        self._closed = False

    @property
    @abstractmethod
    def _is_running(self) -> bool:
        """Whether the workers were started."""

    @abstractmethod
    def _start(self, cursor: Cursor) -> None:
        """Start the workers at `cursor`."""

    @abstractmethod
    def _move(self, cursor: Cursor) -> None:
        """Move running workers to `cursor`, and drop the batches that they made for another place."""

    def seek(self, cursor: Cursor) -> None:
        """Make `cursor` the next batch, as Engine.seek; the first call starts the workers."""
        if self._closed:
            raise self._closed_error()
        if self._is_running and cursor == self._next:
            return
        self._next = NOWHERE
        if self._is_running:
            self._move(cursor)
        else:
            self._start(cursor)
        self._next = cursor

    def _closed_error(self, *, waiting: bool = False) -> LoaderError:
        cause = "the loader was closed while waiting for a batch" if waiting else "the loader is closed"
        return LoaderError("E-MISUSE", cause, fix="make a new loader", backend=self.name)

    def _raise_error_of(self, produced: Produced) -> None:
        """Close the engine and raise the error in `produced`, if there is one."""
        error = produced.error
        if error is not None:
            self.close()
            cause = WorkerTraceback(produced.trace) if produced.trace else error.__cause__
            raise error.locate(**self._where()) from cause

    def _hand_out(
        self, produced: Produced, slots: BatchSlots, recycler: Recycler, images: torch.Tensor | None = None
    ) -> HostBatch:
        """Return the batch in a filled slot, as BatchSlots.hand_out does, and advance to the next place."""
        cursor = produced.item.cursor
        batch = slots.hand_out(produced, self._planner.layout(cursor), recycler, images)
        if produced.bad:  # substitutes have other draws than the planned ones
            keys = self._planner.schedule.draw_keys(cursor)
            batch = replace(batch, augments=self._planner.draw_augments(cursor, batch.index, keys))
        self._next = self._planner.schedule.after(cursor)
        return batch

    def _about_slots(self, slots: BatchSlots) -> dict[str, object]:
        """Return the part of describe() on whether a GPU copies directly out of the slots."""
        return {} if torch.device(self._planner.device).type == "cpu" else {"page_locked": slots.pinned}

    def _where(self, sample: int = -1) -> dict[str, Any]:
        """Return the fields of an error: backend, rank, and the sample (-1 for none) with its path."""
        where: dict[str, Any] = {"backend": self.name, "rank": self._planner.schedule.rank}
        if sample >= 0:
            where["sample"] = sample
            where["path"] = name_sample(self._planner.source, sample) or None
        return where

    @abstractmethod
    def close(self) -> None:
        """Stop and free everything, as Engine.close."""
