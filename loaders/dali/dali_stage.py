"""DaliStage: sends batches through DALI, receives them in order, and makes a refused batch again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from penstock.loaders.dali.dali_tasks import CropTaskProducer
from penstock.loaders.dali.dali_verify import Verifier
from penstock.loaders.make.batch_planner import BatchPlanner
from penstock.loaders.make.layout import BatchLayout
from penstock.loaders.make.producer import Producer
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.run.engine.batch_maker import BatchMaker
from penstock.loaders.run.engine.batch_queue import stopped_by
from penstock.loaders.run.engine.slots import BatchSlots
from penstock.loaders.run.engine.work_items import Produced, WorkItem
from penstock.loaders.run.feed.copies import CopyEngine
from penstock.pipelines.batch.upload_parameters import to_device
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Pixels
from penstock.pipelines.sample.dali_graph import DaliGraph, GraphSettings


class Finished(NamedTuple):
    """A finished batch.

    Attributes:
        produced: the message about it.
        images: the whole batch, uint8 [batch, height, width, 3], complete on the graph's device: in DALI's memory, or
            in the stage's if Penstock decoded some of the rows; None if the batch is in its slot.
    """

    produced: Produced
    images: torch.Tensor | None = None


class _Sent(NamedTuple):
    """A batch in progress in DALI.

    Attributes:
        produced: the readers' message about it, with the tasks.
        rows: for each graph that works on it, whether it is the graph of JPEGs, and its rows.
        refusal: why DALI did not accept it, None if it did.
    """

    produced: Produced
    rows: tuple[tuple[bool, list[int]], ...]
    refusal: LoaderError | None = None


class DaliStage:
    """Sends the crops of batches through DALI and returns the batches in order, in one thread.

    Args:
        make_again: returns a maker for batches that DALI refused, which fills slots with the given producer.
        copies: copies rows of the slot to DALI's device; by default on a separate stream of the stages.
        verifier: compares DALI's images; None for no comparison.
        layout_at: returns the layout of the batch at a place.

    Attributes:
        refused: number of batches that DALI refused.
    """

    def __init__(
        self,
        settings: GraphSettings,
        slots: BatchSlots,
        make_again: Callable[[Callable[[BatchPlanner], Producer]], BatchMaker],
        layout_at: Callable[[Cursor], BatchLayout],
        *,
        copies: CopyEngine | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        self._settings, self._slots, self._make_again, self._layout_at = settings, slots, make_again, layout_at
        self._copies, self._verifier = copies, verifier
        self._graphs: dict[bool, DaliGraph] = {}  # True: decodes JPEGs; False: crops pixels
        self._under_way: deque[_Sent] = deque()
        self.refused = 0

    def __len__(self) -> int:
        """Return the number of batches in progress."""
        return len(self._under_way)

    def send(self, produced: Produced) -> None:
        """Start a batch. An error is not raised here, but returned with the batch."""
        self._under_way.append(self._start(produced))

    def _start(self, produced: Produced) -> _Sent:
        if self._verifier is not None and self._verifier.moved:
            produced = self._without_moved(produced, self._verifier)
        rows: dict[bool, list[int]] = {}
        for row, task in produced.tasks:
            rows.setdefault(task.coded, []).append(row)
        sent = _Sent(produced, tuple(rows.items()))
        try:
            for coded in rows:
                if coded not in self._graphs:
                    self._graphs[coded] = DaliGraph(self._settings, coded=coded)
                self._graphs[coded].feed([task for _, task in produced.tasks if task.coded == coded])
        except Exception as error:
            if isinstance(error, LoaderError) and error.code == "E-CORRUPT":  # perhaps the error of an earlier batch
                return sent._replace(refusal=error)
            return _Sent(_end_with(produced, error), ())
        return sent

    def receive(self) -> Finished:
        """Wait for the oldest batch in progress and return it."""
        sent = self._under_way[0]
        try:
            try:
                done = self._collect(sent)
            except LoaderError as error:
                if error.code != "E-CORRUPT":
                    raise
                done = self._retry(sent)
            if self._verifier is not None:
                self._look_at(done, self._verifier)
        except Exception as error:
            done = Finished(_end_with(sent.produced, error))
        self._under_way.popleft()
        return done._replace(produced=done.produced._replace(tasks=()))

    def _without_moved(self, produced: Produced, verifier: Verifier) -> Produced:
        """Make the rows that DALI is known to decode wrongly with our decoder; return the other rows as tasks."""
        pixels, rows = self._pixels(produced.item), self._slots.rows[produced.item.slot]
        left = []
        for row, task in produced.tasks:
            own = verifier.own(task) if int(rows["index"][row]) in verifier.moved else None
            if own is None:
                left.append((row, task))
            else:
                pixels[row] = own
        return produced._replace(tasks=tuple(left))

    def _pixels(self, item: WorkItem) -> Pixels:
        """Return the images in the slot of a batch, uint8 [batch, height, width, 3]."""
        pixels: Pixels = self._layout_at(item.cursor).arrays(self._slots.memory[item.slot])[0]
        return pixels

    def _look_at(self, done: Finished, verifier: Verifier) -> None:
        samples = self._slots.rows[done.produced.item.slot]["index"].astype(np.int64)
        images = torch.from_numpy(self._pixels(done.produced.item)) if done.images is None else done.images
        verifier.look_at(
            done.produced, samples, images, None if images.device.type == "cpu" else self._copies_of(images.device)
        )

    def _copies_of(self, device: torch.device) -> CopyEngine:
        self._copies = self._copies or CopyEngine(device, "dali")
        return self._copies

    def _collect(self, sent: _Sent) -> Finished:
        if sent.refusal is not None:
            raise sent.refusal
        produced = sent.produced
        parts = [(rows, self._graphs[coded].take()) for coded, rows in sent.rows]
        if len(parts) == 1 and len(parts[0][0]) == self._layout_at(produced.item.cursor).batch_size:
            return Finished(produced, parts[0][1])
        slot = self._pixels(produced.item)
        if parts and self._settings.device_id is not None:
            return Finished(produced, self._on_device(slot, parts))
        for rows, images in parts:
            slot[rows] = images.numpy()
        return Finished(produced)

    def _on_device(self, slot: Pixels, parts: list[tuple[list[int], torch.Tensor]]) -> torch.Tensor:
        """Return DALI's rows and those of the slot as one tensor on the device. Only this thread waits for the copy."""
        device = parts[0][1].device
        copies = self._copies_of(device)
        others = np.setdiff1d(np.arange(len(slot)), np.concatenate([rows for rows, _ in parts]))
        host = torch.from_numpy(slot[others])
        pinned = copies.pinned(host).copy_(host) if len(others) else host
        with copies.side():
            whole = torch.empty(slot.shape, dtype=torch.uint8, device=device)
            for rows, images in [*parts, (others, pinned.to(device, non_blocking=True))]:
                whole.index_copy_(0, to_device(np.asarray(rows, np.int64), device), images)
            done = copies.mark()
        copies.wait_on_host(done)
        return whole

    def _retry(self, sent: _Sent) -> Finished:
        """Make the batch again, without samples that our decoder also refuses; if DALI still refuses it, without DALI.

        No other batch is in progress meanwhile, because DALI does not report which of its batches it refused.
        """
        self.refused += 1
        done = None
        for make_producer in (partial(CropTaskProducer, checked=True), Producer):
            self._drop_graphs()
            again = self._make_again(make_producer).make(sent.produced.item)
            try:
                done = self._collect(self._start(again))
                break
            except LoaderError as error:
                if error.code != "E-CORRUPT":
                    raise
        assert done is not None  # the last try has no tasks, so DALI cannot refuse it
        later = [self._under_way.popleft() for _ in range(len(self._under_way))]
        self._under_way.append(sent)
        for other in later[1:]:
            self.send(other.produced)
        return done

    def _drop_graphs(self) -> None:
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()

    def close(self) -> None:
        """Drop the graphs and their batches in progress; a batch that is sent later builds new graphs."""
        self._drop_graphs()
        self._under_way.clear()


def _end_with(produced: Produced, error: Exception) -> Produced:
    """Return the message that `error` ended the stream at this batch."""
    stopped = stopped_by(error, produced.item, -1)
    return stopped._replace(error=error) if isinstance(error, LoaderError) else stopped
