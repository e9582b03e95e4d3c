"""Batches on their way through DALI: sent and received in order, and made again where DALI refuses one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from penstock.loaders.backends.dali_producer import CheckedCropProducer
from penstock.loaders.engine.batch_maker import BatchMaker
from penstock.loaders.engine.producer import Producer
from penstock.loaders.engine.slots import BatchSlots, Produced
from penstock.loaders.engine.thread_engine import stopped_by
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.sample.dali_graph import DaliGraph, GraphSettings


class _Sent(NamedTuple):
    """A batch under way: its number, what the readers made of it, which rows each kind of graph is working on.

    refusal: why it was not even taken in.
    """

    number: int
    produced: Produced
    rows: tuple[tuple[bool, list[int]], ...]
    refusal: LoaderError | None = None


class DaliStage:
    """Sends batches' crops through DALI and hands them out in order; belongs to one thread.

    make_again(kind): a BatchMaker of that kind of Producer, for batches that DALI refused. `refused` counts those.
    """

    def __init__(
        self, settings: GraphSettings, slots: BatchSlots, make_again: Callable[[type[Producer]], BatchMaker]
    ) -> None:
        self._settings, self._slots, self._make_again = settings, slots, make_again
        self._graphs: dict[bool, DaliGraph] = {}  # of JPEGs (True), of pixels (False)
        self._under_way: deque[_Sent] = deque()
        self.refused = 0

    def __len__(self) -> int:
        """Batches under way."""
        return len(self._under_way)

    def send(self, number: int, produced: Produced) -> None:
        """Start a batch; what goes wrong is told in the Produced that comes out."""
        self._under_way.append(self._start(number, produced))

    def _start(self, number: int, produced: Produced) -> _Sent:
        rows: dict[bool, list[int]] = {}
        for row, task in produced.tasks:
            rows.setdefault(isinstance(task.data, bytes), []).append(row)
        sent = _Sent(number, produced, tuple(rows.items()))
        try:
            for coded in rows:
                if coded not in self._graphs:
                    self._graphs[coded] = DaliGraph(self._settings, coded=coded)
                self._graphs[coded].feed([task for _, task in produced.tasks if isinstance(task.data, bytes) == coded])
        except LoaderError as error:
            if error.code == "E-CORRUPT":  # maybe of a batch before it
                return sent._replace(refusal=error)
            return _Sent(number, _ended(produced, error), ())
        except Exception as error:
            return _Sent(number, _ended(produced, error), ())
        return sent

    def receive(self) -> tuple[int, Produced]:
        """The oldest batch under way, complete, and its number; waits for it."""
        sent = self._under_way[0]
        try:
            done = self._complete(sent)
        except Exception as error:
            done = _ended(sent.produced, error)
        self._under_way.popleft()
        return sent.number, done._replace(tasks=())

    def _complete(self, sent: _Sent) -> Produced:
        try:
            return self._taken(sent)
        except LoaderError as error:
            if error.code != "E-CORRUPT":
                raise
        return self._repaired(sent)

    def _taken(self, sent: _Sent) -> Produced:
        if sent.refusal is not None:
            raise sent.refusal
        produced = sent.produced
        parts = [(rows, self._graphs[coded].take()) for coded, rows in sent.rows]
        if len(parts) == 1 and len(parts[0][0]) == self._settings.batch_size:
            return produced._replace(images=parts[0][1])
        slot = self._slots.pixels[produced.item.slot]
        for rows, images in parts:
            slot[rows] = images.cpu().numpy()
        return produced

    def _repaired(self, sent: _Sent) -> Produced:
        """The batch made again: without what our own decoder refuses too, and if DALI still refuses it without DALI.

        By itself: until it is out, it may as well be a batch behind it that DALI cannot take.
        """
        self.refused += 1
        done = None
        for kind in (CheckedCropProducer, Producer):
            self._drop_graphs()
            again = self._make_again(kind).make(sent.produced.item)
            try:
                done = self._taken(self._start(sent.number, again))
                break
            except LoaderError as error:
                if error.code != "E-CORRUPT":
                    raise
        assert done is not None  # a Producer leaves no row to DALI
        later = [self._under_way.popleft() for _ in range(len(self._under_way))]
        self._under_way.append(sent)
        for other in later[1:]:
            self.send(other.number, other.produced)
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
    """What says that `error` ended the stream at this batch."""
    stopped = stopped_by(error, produced.item, -1)
    return stopped._replace(error=error) if isinstance(error, LoaderError) else stopped
