"""Verifier compares samples that DALI has decoded with the same samples from Penstock's own decoder."""

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

_WAITING = 64  # samples that may wait to be compared; a batch that comes later is not looked at closely
_UNWRITTEN = 8  # rows of a batch that are looked at because they seem never to have been written
_MAX_MISREAD = 16  # of so many wrong samples, the decoder is to blame for more than them
# What the memory of a batch on a GPU holds when it goes back to DALI: a line of an image that still holds nothing else
# was never written.
CANARY = 197
_MEASURED = (ON_CPU,)  # the limits that were measured; the first sample beyond another one must not end a run
_STRIDE = 149  # prime: the rows that are compared are others in each batch


class _Sample(NamedTuple):
    """Hold a row of a batch that is to be compared; `image` is uint8 [height, width, 3]."""

    sample: int
    row: int
    task: CropTask
    image: Pixels
    unwritten: bool


class Verifier:
    """Looks at `per_batch` rows of each batch, and at those whose memory still holds what it was filled with before.

    look_at() belongs to the thread that drives DALI; compare() to the verifying thread, or to the consumer.

    Attributes:
        compared: number of samples that were compared.
        passed_over: number of batches without a compared sample, because too many waited.
        moved: samples that DALI decoded wrongly, and that our decoder makes from then on.
        doubtful: number of samples beyond a limit that was never measured on such a device: counted, and served.
    """

    def __init__(self, planner: BatchPlanner, per_batch: int) -> None:
        self._planner, self._per_batch = planner, per_batch
        self._limit = ON_CPU if torch.device(planner.device).type == "cpu" else ON_GPU
        self._own = threading.local()  # a reference of each thread
        self._waiting: deque[_Sample] = deque()
        self._wrong: deque[BadSample] = deque()
        self._batches, self.compared, self.passed_over = 0, 0, 0
        self.moved: set[int] = set()
        self.doubtful, self._doubt = 0, ""

    # ---- in the thread that drives DALI

    def look_at(
        self, produced: Produced, samples: npt.NDArray[np.int64], images: torch.Tensor, copies: CopyEngine | None
    ) -> None:
        """Take the rows of a finished batch that are to be compared; waits for nothing but their copy.

        samples: index of each row. images: uint8 [batch, height, width, 3]; on a device they are read by `copies`.
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
            if not isinstance(task.data, bytes):  # perhaps a view of memory that is used again
                task = task._replace(data=task.data.copy())
            self._waiting.append(_Sample(int(samples[row]), row, task, image, row in unwritten))

    def own(self, task: CropTask) -> Pixels | None:
        """Make the image of a sample that was moved here; None where our decoder cannot, after all."""
        try:
            return self._reference().image(task)
        except LoaderError:
            return None

    # ---- in the verifying thread

    def run(self, queue: BatchQueue) -> None:
        """Compare what comes, until the queue is closed."""
        while not queue.closed:
            with queue.changed:
                while not self._waiting and not queue.closed:
                    queue.changed.wait()
            self.compare(lambda: queue.closed)

    def compare(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Compare the samples that wait."""
        while self._waiting and not stop():
            sample = self._waiting.popleft()
            try:
                what, moves = self._judge(sample), True
                if what and self._limit not in _MEASURED and not sample.unwritten:
                    self._doubt = self._doubt if self.doubtful else f"sample {sample.sample}: {what}"
                    self.doubtful, what = self.doubtful + 1, ""
            except LoaderError as error:
                what, moves = f"and libjpeg refuses the file ({error.cause})", False
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
        """Return what was found since the last call. Raises LoaderError E-DECODER once too much was found wrong.

        Warns of the first sample beyond a limit that was never measured.
        """
        if doubt := self._doubt:
            self._doubt = ""
            text = (
                f"{versions()} is further from libjpeg than stated, and the limit was never measured on a GPU: {doubt}"
            )
            warn_user(f"{text}; describe()['doubtful'] counts such samples", RuntimeWarning)
        found = tuple(self._wrong.popleft() for _ in range(len(self._wrong)))
        if found and len(self.moved) >= _MAX_MISREAD:
            cause = f"{len(self.moved)} of {self.compared:,} samples that were compared are wrong, the latest: "
            fix = "pass decode='whole' or decode='ours' to backend dali, or take another version of DALI"
            raise LoaderError("E-DECODER", cause + found[-1].cause, fix=fix, sample=found[-1].sample)
        return found

    def describe(self) -> dict[str, object]:
        """Return what was looked at so far."""
        counts = {
            "compared": self.compared,
            "misread": len(self.moved),
            "doubtful": self.doubtful,
            "not_compared": self.passed_over,
        }
        return {"verified_per_batch": self._per_batch, **counts}

    def warn_of_the_rest(self) -> None:
        """Warn of what was found after the last batch, with which it would have been reported."""
        for entry in self._wrong:
            text = f"sample {entry.sample} ({printable(entry.path)}): {entry.cause}"
            warn_user(text, RuntimeWarning)
        self._wrong.clear()


def _on_host(make: Callable[[], torch.Tensor], copies: CopyEngine | None) -> npt.NDArray[Any]:
    """Return in host memory what `make` makes on the stream of `copies`; waits for that alone."""
    if copies is None:
        return make().numpy()
    with copies.side():
        made = make()
        host = copies.pinned(made).copy_(made, non_blocking=True)
        done = copies.mark()
    copies.wait_on_host(done)
    return host.numpy()


def mark_unwritten(images: torch.Tensor) -> None:
    """Fill the memory of a batch that is read no more, so that rows that DALI leaves unwritten are seen next time."""
    images.fill_(CANARY)


def unwritten_rows(images: torch.Tensor) -> torch.Tensor:
    """Return for each image, bool [batch], whether a line of it holds the canary alone. A real one may: it is compared.

    One reduction of the pixels; nothing is read back.
    """
    least, most = torch.aminmax(images.flatten(2), dim=2)
    return ((least == CANARY) & (most == CANARY)).any(1)
