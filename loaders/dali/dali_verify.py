"""Verifier: compares samples decoded by DALI with the same samples from Penstock's decoder."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from penstock.loaders.dali.dali_versions import versions
from penstock.loaders.make.batch_planner import BatchPlanner
from penstock.loaders.order.ledger import BadSample
from penstock.loaders.run.engine.batch_queue import BatchQueue
from penstock.loaders.run.engine.work_items import Produced
from penstock.loaders.run.feed.copies import CopyEngine
from penstock.pipelines.batch.upload_parameters import to_device
from penstock.pipelines.errors import LoaderError, printable
from penstock.pipelines.image_types import Pixels
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.sample.dali_graph import CropTask
from penstock.pipelines.sample.dali_reference import ON_CPU, ON_GPU, DaliReference, distance

_WAITING = 64  # samples that may wait for comparison; of later batches, only unwritten rows are compared
_UNWRITTEN = 8  # rows of a batch to compare because they seem never to have been written
_MAX_MISREAD = 16  # with this many wrong samples, the decoder cannot be trusted
# The memory of a batch on a GPU is filled with this value before DALI reuses it: a line of an image that consists of
# this value was never written.
CANARY = 197
_MEASURED = (ON_CPU,)  # measured limits; the first sample beyond another limit must not end a run
_STRIDE = 149  # prime, so that each batch has other rows compared


class _Sample(NamedTuple):
    """A row of a batch to compare; `image` is uint8 [height, width, 3]."""

    sample: int
    row: int
    task: CropTask
    image: Pixels
    unwritten: bool


class Verifier:
    """Compares `per_batch` rows of each batch, and rows that seem never to have been written.

    look_at() is called in DALI's thread; compare() in the verifying thread or in the consumer.

    Attributes:
        compared: number of samples that were compared.
        passed_over: number of batches without a compared sample, because too many waited.
        moved: samples that DALI decoded wrongly; our decoder makes them from now on.
        doubtful: number of samples beyond a limit that was not measured on such a device; they are counted and served.
    """

    def __init__(self, planner: BatchPlanner, per_batch: int) -> None:
        self._planner, self._per_batch = planner, per_batch
        self._limit = ON_CPU if torch.device(planner.device).type == "cpu" else ON_GPU
        self._own = threading.local()  # a reference decoder per thread
        self._waiting: deque[_Sample] = deque()
        self._wrong: deque[BadSample] = deque()
        self._batches, self.compared, self.passed_over = 0, 0, 0
        self.moved: set[int] = set()
        self.doubtful, self._doubt = 0, ""

    # ---- in the thread that drives DALI

    def look_at(
        self, produced: Produced, samples: npt.NDArray[np.int64], images: torch.Tensor, copies: CopyEngine | None
    ) -> None:
        """Copy the rows of a finished batch that will be compared. Waits only for the copy.

        samples: index of each row. images: uint8 [batch, height, width, 3]; on a device `copies` reads them.
        """
        self._batches += 1
        if not produced.tasks:
            return
        tasks = dict(produced.tasks)
        rows = np.array(list(tasks))
        unwritten = rows[_on_host(lambda: unwritten_rows(images), copies)[rows]][:_UNWRITTEN].tolist()
        if len(self._waiting) >= _WAITING and not unwritten:
            self.passed_over += 1
            return
        steps = self._batches * _STRIDE + np.arange(self._per_batch) * (len(rows) // self._per_batch or 1)
        chosen = list(dict.fromkeys([*unwritten, *rows[np.unique(steps % len(rows))].tolist()]))
        pixels = _on_host(lambda: images[to_device(np.array(chosen), images.device)], copies)
        for row, image in zip(chosen, pixels, strict=True):
            task = tasks[row]
            if not isinstance(task.data, bytes):  # it may be a view of memory that is reused
                task = task._replace(data=task.data.copy())
            self._waiting.append(_Sample(int(samples[row]), row, task, image, row in unwritten))

    def own(self, task: CropTask) -> Pixels | None:
        """Return the image of a sample from our decoder; None if our decoder refuses it."""
        try:
            return self._reference().image(task)
        except LoaderError:
            return None

    # ---- in the verifying thread

    def run(self, queue: BatchQueue) -> None:
        """Compare waiting samples until the queue is closed."""
        while not queue.closed:
            with queue.changed:
                while not self._waiting and not queue.closed:
                    queue.changed.wait()
            self.compare(lambda: queue.closed)

    def compare(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Compare the waiting samples."""
        while self._waiting and not stop():
            sample = self._waiting.popleft()
            try:
                what, moves = self._judge(sample), True
                if what and self._limit not in _MEASURED and not sample.unwritten:
                    self._doubt = self._doubt if self.doubtful else f"sample {sample.sample}: {what}"
                    self.doubtful, what = self.doubtful + 1, ""
            except LoaderError as error:
                what, moves = f"libjpeg refuses the file ({error.cause})", False
            self.compared += 1
            if what:
                path = self._planner.source.path(sample.sample)
                path = path if isinstance(path, bytes) else path.encode(errors="surrogateescape")
                cause = f"{versions()} decoded it wrongly: {what}"
                self._wrong.append(BadSample(sample.sample, "E-DECODER", cause, path, sample.sample, sample.row))
                if moves:
                    self.moved.add(sample.sample)

    def _judge(self, sample: _Sample) -> str:
        ours = self._reference().expected(sample.task)
        if ours is None or (far := distance(sample.image, ours)).within(self._limit):
            return ""
        stated = "{:g}, {:g} and {:g}".format(*self._limit)
        return f"{far} (stated: {stated})" + ", a part of it was never written" * sample.unwritten

    def _reference(self) -> DaliReference:
        if not hasattr(self._own, "reference"):
            self._own.reference = DaliReference(self._planner.pipeline, self._planner.decoder)
        found: DaliReference = self._own.reference
        return found

    # ---- in the consumer

    def take_wrong(self) -> tuple[BadSample, ...]:
        """Return the wrong samples since the last call. Raises LoaderError E-DECODER if too many samples are wrong.

        Warns about the first sample beyond a limit that was not measured.
        """
        if doubt := self._doubt:
            self._doubt = ""
            text = (
                f"{versions()} differs from libjpeg by more than stated, but the limit was not measured on a GPU: "
                f"{doubt}"
            )
            warn_user(f"{text}; describe()['doubtful'] counts such samples", RuntimeWarning)
        found = tuple(self._wrong.popleft() for _ in range(len(self._wrong)))
        if found and len(self.moved) >= _MAX_MISREAD:
            cause = f"{len(self.moved)} of {self.compared:,} compared samples are wrong, the latest: "
            fix = "pass decode='whole' or decode='ours' to backend dali, or use another version of DALI"
            raise LoaderError("E-DECODER", cause + found[-1].cause, fix=fix, sample=found[-1].sample)
        return found

    def describe(self) -> dict[str, object]:
        """Return the counts so far."""
        counts = {
            "compared": self.compared,
            "misread": len(self.moved),
            "doubtful": self.doubtful,
            "not_compared": self.passed_over,
        }
        return {"verified_per_batch": self._per_batch, **counts}

    def warn_of_the_rest(self) -> None:
        """Warn about wrong samples found after the last batch, which could not be reported with a batch."""
        for entry in self._wrong:
            text = f"sample {entry.sample} ({printable(entry.path)}): {entry.cause}"
            warn_user(text, RuntimeWarning)
        self._wrong.clear()


def _on_host(make: Callable[[], torch.Tensor], copies: CopyEngine | None) -> npt.NDArray[Any]:
    """Return the result of `make` on the stream of `copies` in host memory. Waits only for this copy."""
    if copies is None:
        return make().numpy()
    with copies.side():
        made = make()
        host = copies.pinned(made).copy_(made, non_blocking=True)
        done = copies.mark()
    copies.wait_on_host(done)
    return host.numpy()


def mark_unwritten(images: torch.Tensor) -> None:
    """Fill the memory of a used batch, so that rows that DALI does not write next time are detected."""
    images.fill_(CANARY)


def unwritten_rows(images: torch.Tensor) -> torch.Tensor:
    """Return whether a line of each image consists of the canary only, bool [batch].

    A real image may have such a line, so these rows are compared with our decoder. This is one reduction of the pixels;
    nothing is copied to the host.
    """
    least, most = torch.aminmax(images.flatten(2), dim=2)
    return ((least == CANARY) & (most == CANARY)).any(1)
