"""Batches on their way through DALI: sent and received in order, and made again where DALI refuses one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch

from penstock.loaders.backends.dali_producer import checked_crop_task
from penstock.loaders.engine.batch_maker import BatchMaker
from penstock.loaders.engine.batch_queue import stopped_by
from penstock.loaders.engine.producer import MakeTask
from penstock.loaders.engine.slots import BatchSlots, Produced
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.sample.dali_graph import DaliGraph, GraphSettings


class Finished(NamedTuple):
    """A batch that needs no more work.

    produced: the message about it; without images the batch lies in its slot.
    images: the whole batch, uint8 [batch, height, width, 3], in DALI's own memory on the graph's device.
    """

    produced: Produced
    images: torch.Tensor | None = None


class _Sent(NamedTuple):
    """A batch under way.

    produced: what the readers made of it.
    rows: (whether of JPEGs, rows) of each graph that is working on it.
    refusal: why it was not even taken in.
    """

    produced: Produced
    rows: tuple[tuple[bool, list[int]], ...]
    refusal: LoaderError | None = None


class DaliStage:
    """Sends batches' crops through DALI and hands them out in order; belongs to one thread.

    make_again: returns a maker of batches, with crop tasks or (None) without, for batches that DALI refused.
    refused: how many it refused.
    """

    def __init__(
        self, settings: GraphSettings, slots: BatchSlots, make_again: Callable[[MakeTask | None], BatchMaker]
    ) -> None:
        self._settings, self._slots, self._make_again = settings, slots, make_again
        self._graphs: dict[bool, DaliGraph] = {}  # of JPEGs (True), of pixels (False)
        self._under_way: deque[_Sent] = deque()
        self.refused = 0

    def __len__(self) -> int:
        """Batches under way."""
        return len(self._under_way)

    def send(self, produced: Produced) -> None:
        """Start a batch; an error is not raised here, but comes out with the batch."""
        self._under_way.append(self._start(produced))

    def _start(self, produced: Produced) -> _Sent:
        rows: dict[bool, list[int]] = {}
        for row, task in produced.tasks:
            rows.setdefault(isinstance(task.data, bytes), []).append(row)
        sent = _Sent(produced, tuple(rows.items()))
        try:
            for coded in rows:
                if coded not in self._graphs:
                    self._graphs[coded] = DaliGraph(self._settings, coded=coded)
                self._graphs[coded].feed([task for _, task in produced.tasks if isinstance(task.data, bytes) == coded])
        except Exception as error:
            if isinstance(error, LoaderError) and error.code == "E-CORRUPT":  # maybe of a batch before it
                return sent._replace(refusal=error)
            return _Sent(_ended(produced, error), ())
        return sent

    def receive(self) -> Finished:
        """Wait for the oldest batch under way and return it."""
        sent = self._under_way[0]
        try:
            done = self._complete(sent)
        except Exception as error:
            done = Finished(_ended(sent.produced, error))
        self._under_way.popleft()
        return done._replace(produced=done.produced._replace(tasks=()))

    def _complete(self, sent: _Sent) -> Finished:
        try:
            return self._taken(sent)
        except LoaderError as error:
            if error.code != "E-CORRUPT":
                raise
        return self._repaired(sent)

    def _taken(self, sent: _Sent) -> Finished:
        if sent.refusal is not None:
            raise sent.refusal
        produced = sent.produced
        parts = [(rows, self._graphs[coded].take()) for coded, rows in sent.rows]
        if len(parts) == 1 and len(parts[0][0]) == self._settings.batch_size:
            return Finished(produced, parts[0][1])
        slot = self._slots.pixels[produced.item.slot]
        for rows, images in parts:
            slot[rows] = images.cpu().numpy()
        return Finished(produced)

    def _repaired(self, sent: _Sent) -> Finished:
        """Make the batch again: without what our own decoder refuses too, and if DALI still refuses it without DALI.

        By itself: until it is out, it may as well be a batch behind it that DALI cannot take.
        """
        self.refused += 1
        done = None
        for make_task in (checked_crop_task, None):
            self._drop_graphs()
            again = self._make_again(make_task).make(sent.produced.item)
            try:
                done = self._taken(self._start(again))
                break
            except LoaderError as error:
                if error.code != "E-CORRUPT":
                    raise
        assert done is not None  # without tasks no row is left to DALI
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
        """Drop the graphs and what is under way in them; a batch sent later builds new ones."""
        self._drop_graphs()
        self._under_way.clear()


def _ended(produced: Produced, error: Exception) -> Produced:
    """Turn `error` into the message that it ended the stream at this batch."""
    stopped = stopped_by(error, produced.item, -1)
    return stopped._replace(error=error) if isinstance(error, LoaderError) else stopped
