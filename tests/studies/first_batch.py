"""Measures how soon threads have their first batch, as a multiple of its share of the work on so many processors.

`python tests/studies/first_batch.py PHOTOS [--threads 64] [--batch-size 1024] [--image-ms 1.0]`: the native library's
calls only sleep, so what delays the batch is Python, whose threads run one at a time, as on a machine with a processor
for each thread. Prints the bytes of the slots, and the median and largest multiple over some runs: once the threads
run, and with their start.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from penstock.loaders.engine.options import WorkerOptions
from penstock.loaders.engine.thread_engine import ThreadEngine
from penstock.loaders.open_source import open_source
from penstock.loaders.rows.producer_settings import ProducerSettings
from penstock.loaders.stream.engine_contract import Cursor
from penstock.loaders.stream.schedule import Schedule
from penstock.pipelines import imagenet_train
from penstock.pipelines.native.rows import NativeStage, Rows

RUNS = 7


def sleeping(image_ms: float) -> Callable[[NativeStage, Any, Rows], bool]:
    """Return what stands in for NativeStage._call: it takes `image_ms` per row, without the interpreter lock."""

    def call(stage: NativeStage, function: Any, rows: Rows) -> bool:
        rows["width"], rows["height"], rows["orientation"] = 500, 375, 1
        if function.__name__ != "pn_load":
            time.sleep(image_ms * len(rows) / 1e3)
            stage._task.num_made = len(rows)
        return True

    return call


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos")
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--image-ms", type=float, default=1.0)
    options = parser.parse_args(arguments)
    NativeStage._call = sleeping(options.image_ms)  # type: ignore[method-assign]
    source = open_source(options.photos)
    assert len(source) >= options.batch_size, "the rows of a batch would be padding"
    settings = ProducerSettings(
        source=source,
        pipelines=(imagenet_train(),),
        schedule=Schedule(n=len(source), batch_size=options.batch_size, seed=7),
        decoder="native",
        substitute=False,
        evaluation=False,
        on_repaired="ignore",
    )
    share_s = options.batch_size * options.image_ms / 1e3 / min(options.threads, options.batch_size)
    found: dict[str, list[float]] = {"with their start": [], "once they run": []}
    for epoch in range(RUNS):
        engine = ThreadEngine("torch", settings, WorkerOptions(workers=options.threads))
        for name, place in (("with their start", Cursor(epoch, 0)), ("once they run", Cursor(epoch + RUNS, 0))):
            began = time.perf_counter()
            engine.seek(place)
            engine.next()
            found[name].append((time.perf_counter() - began) / share_s)
            time.sleep(0.2)  # the batches ahead are made: every thread waits
        assert engine.queue is not None
        slot_bytes = engine.queue.slots.memory.nbytes
        engine.close()
    print(f"{slot_bytes / 1e9:.2f} GB of slots; a batch's share of the work is {1e3 * share_s:.1f} ms")
    for name, multiples in found.items():
        print(f"first batch, {name}: {statistics.median(multiples):.2f} times that, at most {max(multiples):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
