"""Tries DALI on this GPU (ways of decoding, distances, rates): `gpu_dali.py OUT.json DATA DEVICE`."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gpu_notes import Notes

from penstock.bench.probe.data.wrapped_sources import repeat_source
from penstock.bench.record.loader_rate import loader_rate
from penstock.loaders import create_loader
from penstock.loaders.dali import dali_probe, dali_versions
from penstock.loaders.front.open_source import open_source
from penstock.pipelines.jpeg.header import parse_header
from penstock.pipelines.sample.dali_graph import CropTask, DaliGraph, GraphSettings, dali_can_decode
from penstock.pipelines.sample.dali_reference import DaliReference, distance
from penstock.pipelines.spec import imagenet_train

WAYS = (dali_probe.REGIONS, dali_probe.WHOLE)
MOST_IMAGES = 200


def try_ways(notes: Notes) -> None:
    """Let the product choose its way, and try the other one, each in a separate process."""
    gpu = torch.device("cuda", 0)
    asks = {"chosen way": lambda: dali_probe.working_way(gpu, again=True)}
    asks["whole images"] = lambda: dali_probe.try_way(dali_probe.WHOLE, gpu)
    for name, ask in asks.items():
        noted(notes, name, lambda ask=ask: {"said": ask()})


def noted(notes: Notes, name: str, work: Callable[[], dict[str, Any]]) -> None:
    """Note the result of `work` and its duration, or its error, because the next one may work."""
    start = time.perf_counter()
    try:
        found = work()
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"[:300]}
    notes.note(name, {**found, "seconds": round(time.perf_counter() - start, 1)})


def random_tasks(source: Any) -> list[CropTask]:
    """Return a random crop of each photo that DALI can decode."""
    draw, tasks = np.random.default_rng(0), []
    for index in range(min(MOST_IMAGES, len(source))):
        coded = source.read(index)
        header = parse_header(coded)
        if header is None or not dali_can_decode(header, coded):
            continue
        width, height = (int(draw.integers(2, side + 1)) for side in (header.width, header.height))
        x, y = int(draw.integers(0, header.width - width + 1)), int(draw.integers(0, header.height - height + 1))
        tasks.append(CropTask(coded, (x, y, width, height), bool(draw.integers(2))))
    return tasks


def distances(tasks: list[CropTask], expected: list[Any], settings: GraphSettings) -> dict[str, Any]:
    """Return the largest mean, 99.9 % quantile and edge distance of any image, and the median of the means."""
    graph, apart = DaliGraph(settings, coded=True), []
    try:
        for at in range(0, len(tasks), settings.batch_size):
            graph.feed(tasks[at : at + settings.batch_size])
            made = graph.take().cpu().numpy()
            pairs = zip(made, expected[at : at + settings.batch_size], strict=True)
            apart += [distance(image, ours) for image, ours in pairs if ours is not None]
    finally:
        graph.close()
    most = [round(max(row[part] for row in apart), 2) for part in range(3)]
    median = round(float(np.median([row[0] for row in apart])), 3)
    return {"most: mean, p99.9, edge": most, "median of means": median, "images": len(apart)}


def loader_about(source: Any, way: str, load: float, device: str) -> dict[str, Any]:
    """Measure the loader for one way, with its report on the compared samples."""
    batch, seconds = (256, 3.0) if device.startswith("cuda") else (8, 0.5)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with create_loader(
            repeat_source(source, 100_000),
            backend="dali",
            decode=way,
            hw_decoder_load=load,
            pipeline=imagenet_train(224),
            batch_size=batch,
            device=device,
            dtype=torch.bfloat16,
            on_bad_sample="replace",
            max_bad=None,
        ) as loader:
            rate = loader_rate(loader, seconds=seconds, device=device)
            about = loader.describe()
    kept = {name: about.get(name) for name in ("compared", "misread", "doubtful", "batches_refused")}
    return {"images_per_s": round(rate.median), **kept, "said": sorted({str(each.message)[:200] for each in said})}


def main() -> None:
    out, data, device = sys.argv[1:4]
    notes, on_gpu = Notes(out), device.startswith("cuda")
    noted(notes, "versions", lambda: {"versions": dali_versions.versions(), "driver": dali_versions.driver_version()})
    noted(notes, "edges of regions are right", lambda: {"said": dali_versions.has_right_edges()})
    if on_gpu:
        try_ways(notes)
    source = open_source(data)
    tasks = random_tasks(source)
    reference = DaliReference(imagenet_train(224))
    expected = [reference.expected(task) for task in tasks]
    loads = (0.0, 0.65, 1.0) if on_gpu else (0.65,)
    variants = [(way, load) for way in WAYS for load in loads]
    for way, load in variants:
        settings = GraphSettings(
            size=(224, 224),
            batch_size=32,
            threads=4,
            depth=2,
            device_id=0 if on_gpu else None,
            whole=way == dali_probe.WHOLE,
            hw_decoder_load=load,
        )
        noted(notes, f"{way}, load {load}", lambda settings=settings: distances(tasks, expected, settings))
    for way, load in variants:
        noted(notes, f"loader, {way}, load {load}", lambda way=way, load=load: loader_about(source, way, load, device))


if __name__ == "__main__":
    main()
