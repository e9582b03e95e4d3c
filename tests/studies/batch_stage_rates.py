"""Compares ways to run the batch stage on a CPU: the native library or torch's operations, in whose threads.

`python batch_stage_rates.py --json FILE`: batches of 32 random images, float32. The ways alternate; first on the
machine as it is, then with one busy process per processor. Other load changes the processor time of one thread least.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple
from unittest import mock

import numpy as np
import torch
import typer

from penstock.bench.record.environment import describe_environment
from penstock.loaders.run.feed.stage_threads import THREADS
from penstock.loaders.system.json_file import write_json
from penstock.pipelines import deit3, dino, imagenet_train, simclr
from penstock.pipelines.batch import native_ops
from penstock.pipelines.batch.stage import BatchStage
from penstock.pipelines.plan.augmentations import AugmentPlan, BatchKey
from penstock.pipelines.spec import ImagePipeline

CPU, SETTLE_S = torch.device("cpu"), 6.0
PIPELINES: dict[str, tuple[ImagePipeline, ...]] = {
    "simclr": simclr(224),
    "dino": dino(),
    "deit3": (deit3(224),),
    "color_jitter": (imagenet_train(224, color_jitter=(0.4, 0.4, 0.4, 0.1)),),
}
OWN, TORCHS, ONE = "the loader's threads", "torch's threads", "one thread"
WAYS = [("native", OWN), ("torch", OWN), ("torch", TORCHS), ("native", ONE), ("torch", ONE)]


class View(NamedTuple):
    """One view of a batch: its stage, images, memory for the result, and plan."""

    stage: BatchStage
    images: torch.Tensor
    out: torch.Tensor
    plan: AugmentPlan | None


def make_views(pipelines: tuple[ImagePipeline, ...], batch: int) -> list[View]:
    """Return the views of a batch of random images."""
    views = []
    for number, pipeline in enumerate(pipelines):
        assert pipeline.size is not None
        stage = BatchStage(pipeline, torch.float32, CPU, num_classes=1000)
        levels = np.random.default_rng(number).integers(0, 256, (batch, *pipeline.size, 3), np.uint8)
        plan = stage.plan(BatchKey(1, 0, np.arange(batch), number))
        views.append(View(stage, torch.from_numpy(levels), torch.empty(levels.shape, device="cpu"), plan))
    return views


def run_stages(views: list[View], threads: str) -> None:
    """Run the stages of all views in these threads."""
    if threads == TORCHS:  # torch divides each operation among its threads
        for stage, images, out, plan in views:
            stage(images, out, plan)
        return
    jobs: list[Callable[[], None]] = []
    for stage, images, out, plan in views:
        assert plan is not None
        jobs += stage.split(images, out, plan, THREADS.limit)
    THREADS.run(views, jobs)


def measure(views: list[View], operations: str, threads: str) -> tuple[float, float]:
    """Return seconds, and seconds of processor time, for one batch."""
    available = torch.get_num_threads()
    torch.set_num_threads(1 if threads == ONE else available)
    library = native_ops.native_library() if operations == "native" else None
    with mock.patch.object(native_ops, "native_library", return_value=library):
        started, used = time.perf_counter(), time.process_time()
        run_stages(views, threads)
        result = time.perf_counter() - started, time.process_time() - used
    torch.set_num_threads(available)
    return result


def check_results(views: list[View]) -> None:
    """Check that all ways give the same pixels; this also warms up."""
    results = []
    for way in WAYS:
        measure(views, *way)
        results.append([view.out.clone() for view in views])
    assert all(torch.equal(*pair) for result in results[1:] for pair in zip(results[0], result, strict=True))


def burn() -> None:
    """Keep one processor busy."""
    while True:
        pass


@contextmanager
def busy_processors(number: int) -> Iterator[None]:
    """Keep `number` processors busy with other processes."""
    processes = [multiprocessing.get_context("spawn").Process(target=burn, daemon=True) for _ in range(number)]
    for process in processes:
        process.start()
    time.sleep(SETTLE_S if processes else 0)
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def run_rounds(views: list[View], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return seconds of each way, one per round; the ways alternate in random order."""
    found: dict[str, dict[str, list[float]]] = {", ".join(way): {"wall_s": [], "cpu_s": []} for way in WAYS}
    for number in range(rounds):
        for way in random.Random(number).sample(WAYS, len(WAYS)):
            for times, seconds in zip(found[", ".join(way)].values(), measure(views, *way), strict=True):
                times.append(round(seconds, 4))
    return found


def main(
    rounds: int = 9,
    busy_rounds: int = 5,
    batch: int = 32,
    only: Annotated[list[str] | None, typer.Option(help="Pipelines to measure instead of all.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measure, print medians, and write the record."""
    stages: dict[str, object] = {}
    for name in only or PIPELINES:
        views = make_views(PIPELINES[name], batch)
        check_results(views)
        for state, number, busy in (("as it was", rounds, 0), ("busy", busy_rounds, os.cpu_count() or 1)):
            with busy_processors(busy if number else 0):
                load, found = os.getloadavg()[0], run_rounds(views, number)
            stages[f"{name}, {state}"] = {"load_at_start": load, "ways": found}
            for way, times in found.items() if number else ():
                wall, cpu = (statistics.median(values) for values in times.values())
                typer.echo(f"{name:13} {state:9} {way:29} {wall:.3f} s, processors {cpu:.3f} s")
    record = {"environment": describe_environment(), "batch_size": batch, "threads": THREADS.limit, "stages": stages}
    if json_file:
        write_json(json_file, record)


if __name__ == "__main__":
    typer.run(main)
