"""A producer's results with and without the native library, which must be equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import simplejpeg
from make_planner import make_planner

from penstock.loaders.make.batch_planner import BatchPlanner
from penstock.loaders.make.producer import Producer
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.ledger import BadSample
from penstock.loaders.run.engine.work_items import BATCH_ROW
from penstock.pipelines import imagenet_train
from penstock.pipelines.sample.dali_graph import CropTask

BATCH = 16


class Made:
    """The results of a producer for some batches.

    Attributes:
        batches: tasks for DALI, pixels, rows, bad samples and repairs of each batch.
        native: number of rows that the library made, or prepared as tasks.
        coded: whether each task is encoded.
    """

    def __init__(self, make: Callable[..., Producer], settings: BatchPlanner, batches: int) -> None:
        producer, size = make(settings), settings.pipeline.size
        self.native, self.coded, self.batches = 0, set[bool](), list[tuple[Any, ...]]()
        producer._make_natively = self._counted(producer._make_natively)  # type: ignore[method-assign]
        for number in range(batches):
            pixels, rows = np.full((BATCH, *size, 3), 77, np.uint8), np.zeros(BATCH, BATCH_ROW)
            cursor = Cursor(number * BATCH // len(settings.source), number * BATCH % len(settings.source))
            made = producer.produce(cursor, pixels.reshape(-1), rows, lambda sample: None)
            bad, repaired = made.in_batch(made.bad), made.in_batch(made.repaired)
            tasks = [(row, *_as_pixels(task)) for row, task in made.tasks]
            self.coded.update(task.coded for _, task in made.tasks)
            self.batches.append((tasks, pixels.tobytes(), rows.tobytes(), bad, repaired))

    def _counted(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            filled = make(*arguments)
            self.native += len(filled)
            return filled

        return counted

    @property
    def bad(self) -> list[BadSample]:
        """Bad samples and repairs."""
        return [entry for *_, bad, repaired in self.batches for entry in (*bad, *repaired)]

    @property
    def codes(self) -> set[str]:
        return {entry.code for entry in self.bad}


def _as_pixels(task: CropTask) -> tuple[Any, ...]:
    """Return the pixels of a task: from a cache, the library extracts a part, and Python uses the whole image."""
    assert isinstance(task.data, bytes) or task.data.flags.c_contiguous
    x, y, w, h = task.window
    try:
        pixels = simplejpeg.decode_jpeg(bytes(task.data), "RGB") if task.coded else task.data
    except ValueError:  # a file that libjpeg repairs, which both paths pass on unchanged
        return True, bytes(task.data), task.window, bool(task.flip)
    return task.coded, pixels[y : y + h, x : x + w].tobytes(), (w, h), bool(task.flip)


def settings_of(source: Any, **changes: Any) -> BatchPlanner:
    """Return settings for shuffled batches of crops that replace bad samples."""
    order = {"batch_size": BATCH, "drop_last": False}
    return make_planner(source, order, **{"pipeline": imagenet_train(32), "substitute": True, **changes})


def check_both(
    source: Any, batches: int = 6, *, at_least: int, make: Callable[..., Producer] = Producer, **more: Any
) -> Made:
    """Check that both paths make equal batches, and that the library made the expected number of rows."""
    made = Made(make, settings_of(source, **more), batches)
    python = Made(make, settings_of(source, **{**more, "decoder": "simplejpeg"}), batches)
    assert python.native == 0
    assert made.batches == python.batches
    assert made.native >= at_least
    return made
