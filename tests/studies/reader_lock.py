"""Measures how long threads hold the interpreter lock for an image: the dali backend's readers, and makers of batches.

`python tests/studies/reader_lock.py PHOTOS [--cache CACHE] [--batch-size N] [--parts N] [--json OUT]` reads and plans
batches on one thread, whole ones in `parts`, and prints microseconds an image: the least processor time of some epochs
outside of the native library's calls (those run without the lock) and inside, and what a loop in pure Python on another
thread loses to the reader over 20 batches. The readers' (DALI itself is left out) with the library and without; whole
batches with it alone.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.loaders.dali.dali_tasks import CropTaskProducer
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.front.open_source import open_source
from penstock.loaders.make.batch_planner import BatchPlanner
from penstock.loaders.make.producer import Producer
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.schedule import Schedule
from penstock.loaders.run.engine.work_items import BATCH_ROW
from penstock.loaders.system.json_file import write_json
from penstock.pipelines import imagenet_train

EPOCHS, BATCHES, LOOPS = 25, 20, 2_000_000
PATHS = {  # -> what is made of a row, decoder
    "reader, native": (CropTaskProducer, "auto"),
    "reader, Python": (CropTaskProducer, "simplejpeg"),
    "batch, native": (Producer, "native"),
}


class Reader:
    """A producer of crop tasks, as the dali backend's readers have it, or of images."""

    def __init__(self, source: Source, way: str, batch_size: int, parts: int) -> None:
        make_producer, decoder = PATHS[way]
        schedule = Schedule(n=len(source), batch_size=batch_size, seed=7)
        settings = BatchPlanner(
            source=source,
            pipelines=(imagenet_train(),),
            schedule=schedule,
            decoder=decoder,
            substitute=False,
            evaluation=False,
            on_repaired="ignore",
        )
        self._producer, self._settings = make_producer(settings), settings
        self._pixels = np.zeros((batch_size, *settings.pipeline.size, 3), np.uint8)
        self._rows: np.ndarray[Any, Any] = np.zeros(batch_size, BATCH_ROW)
        self.in_library_s, self._parts = 0.0, parts
        if self._producer._native is not None:
            stage = self._producer._native.stage
            stage._call, self._undisturbed = self._timed, stage._call  # type: ignore[method-assign]

    def _timed(self, *arguments: Any) -> bool:
        began = time.thread_time()
        done = self._undisturbed(*arguments)
        self.in_library_s += time.thread_time() - began
        return done

    def batches(self, epochs: Iterator[int]) -> Iterator[int]:
        """Make batches, and yield the number of images in each."""
        for epoch in epochs:
            for step in range(self._settings.schedule.steps()):
                cursor = Cursor(epoch, step * self._settings.schedule.batch_size)
                for part in range(self._parts):
                    to = self._pixels.reshape(-1), self._rows
                    self._producer.produce(cursor, *to, lambda sample: None, part=(part, self._parts))
                yield len(self._rows)


def processor_us(source: Source, way: str, batch_size: int, parts: int) -> tuple[float, float]:
    """Return (with the lock, in the library) of an image."""
    reader, found = Reader(source, way, batch_size, parts), []
    for epoch in range(EPOCHS):
        began, reader.in_library_s = time.thread_time(), 0.0
        images = sum(reader.batches(iter([epoch])))
        spent = time.thread_time() - began
        found.append((1e6 * (spent - reader.in_library_s) / images, 1e6 * reader.in_library_s / images))
    return min(found)


def lost_us(source: Source, way: str, batch_size: int, parts: int) -> float:
    """Return by how much an image delays a loop on another thread, which needs the lock all the time."""

    def loop() -> float:
        began = time.perf_counter()
        for _ in range(LOOPS):
            pass
        return time.perf_counter() - began

    alone, made, end = min(loop() for _ in range(EPOCHS)), [0], threading.Event()
    reader = Reader(source, way, batch_size, parts)

    def read() -> None:
        torch.set_num_threads(1)
        for images in reader.batches(count()):
            made[0] += images
            if end.is_set():
                return

    thread = threading.Thread(target=read)
    thread.start()
    lost = 0.0
    while made[0] < BATCHES * batch_size:
        lost += loop() - alone
    end.set()
    thread.join()
    return 1e6 * lost / made[0]


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos")
    parser.add_argument("--cache")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows: dict[str, dict[str, float]] = {}
    for name, path in (("files", options.photos), ("cache", options.cache)):
        for way in PATHS if path else ():
            source, parts = open_source(path), options.parts if way.startswith("batch") else 1
            held, inside = processor_us(source, way, options.batch_size, parts)
            lost = lost_us(source, way, options.batch_size, parts)
            rows[f"{name}, {way}"] = {"held_us": held, "in_library_us": inside, "lost_us": lost}
    for name, row in rows.items():
        print(f"{name:21}", *(f"{key} {value:7.1f}" for key, value in row.items()), sep="  ")
    if options.json:
        write_json(options.json, {"batch_size": options.batch_size, "parts": options.parts, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
