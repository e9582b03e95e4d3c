"""`penstock parity`: compares the streams of all engines on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.bench.commands import shared_options as common
from penstock.bench.commands.data_options import DataOptions
from penstock.bench.probe.data.training_folder import training_folder
from penstock.bench.record.settings import BatchSize, Interpolation, Seed, Size

if TYPE_CHECKING:
    from penstock.bench.checks.parity import ParityRecord


@common.takes_settings(data_options=DataOptions)
def parity(
    data: common.Data,
    images: Annotated[int, typer.Option(min=1, help="Maximum number of images to compare.")] = 512,
    cache: Annotated[
        Path | None, typer.Option(help="Lossless HDF5 cache of DATA, built if missing; a temporary one by default.")
    ] = None,
    evaluate: Annotated[bool, typer.Option("--eval", help="Centre crops, in order.")] = False,
    batch_size: BatchSize = 64,
    size: Size = 224,
    interpolation: Interpolation = "bilinear",
    seed: Seed = 0,
    json_file: common.JsonFile = None,
    *,
    data_options: dict[str, Any],
) -> None:
    """Load the same images with every engine that works here and compare each pair; exit code 3 if two differ.

    An engine is a backend with a decoder, a source and a device. Order, labels, crops, flips and ledger must be equal;
    pixels must be within the tolerance given in the table.
    """
    from penstock.bench.checks.parity import ParitySettings, cache_of, compare, engines_for
    from penstock.loaders.front.open_source import open_source
    from penstock.loaders.system.json_file import write_json
    from penstock.loaders.system.progress_bar import ProgressBar
    from penstock.pipelines.errors import EXIT_DATA

    crops: dict[str, Any] = {"size": size, "evaluate": evaluate, "interpolation": interpolation}
    settings = ParitySettings(images=images, seed=seed, batch_size=batch_size, **crops)
    source = open_source(training_folder(data), **data_options)
    with cache_of(source, cache) as (cached, left_out), ProgressBar("comparing", min(images, len(source))) as bar:
        engines = engines_for(source, cached)
        record = compare(source, engines, settings, advance=bar.advance, left_out=left_out)
    _print(record)
    if json_file:
        write_json(json_file, record.as_dict())
    if record.outside:
        raise typer.Exit(EXIT_DATA)


def _print(record: ParityRecord) -> None:
    from penstock.bench.report.section_types import Section, Table
    from penstock.bench.report.terminal import print_sections

    rows = []
    for pair in record.pairs:
        found = pair.distances()
        differing = ", ".join(what for what, count in pair.differing.items() if count)
        worst = "" if found["worst_image"] is None else f"{found['worst_image']}: {found['worst_image_mean']:.3f}"
        mean = f"{found['mean']:.3f}" if found["max"] else "0"
        stream, outside = f"{differing} differ" if differing else "equal", "OUTSIDE" if pair.outside() else ""
        distances = (mean, str(found["p99_9"]), str(found["max"]), worst)
        rows.append((pair.first, pair.second, stream, *distances, outside))
    numbers = [(name, "number") for name in ("mean", "99.9 %", "max", "worst image")]
    columns = [("engine", "text"), ("engine", "short"), ("stream", "short"), *numbers, ("", "short")]
    caption = f"{record.data.describe()}\n{record.images:,} images compared; distances in levels, 0 to 255"
    notes = ["stream: order, labels, crops, flips and ledger, always equal; pixels at most:"]
    for tolerance in dict.fromkeys(pair.tolerance for pair in record.pairs):
        notes.append(f"{tolerance.name}: mean {tolerance.mean:g}, 99.9 % {tolerance.p99_9} ({tolerance.why})")
    notes += [f"left out: {left.name}: {left.cause} ({left.fix})" for left in record.left_out]
    notes += [f"outside: {pair.first} and {pair.second}: {'; '.join(pair.outside())}" for pair in record.outside]
    table = Table(caption=caption, columns=columns, rows=rows)
    print_sections([Section(title="", tables=[table], notes=[*notes, _verdict_line(record)])])


def _verdict_line(record: ParityRecord) -> str:
    total, outside = f"parity: {len(record.engines)} engines, {len(record.pairs)} pairs", record.outside
    if not outside:
        return f"{total}, all inside the tolerance"
    common_engines = set.intersection(*({pair.first, pair.second} for pair in outside))
    culprit = f", each with {common_engines.pop()}" if len(common_engines) == 1 else ""
    return f"{total}, {len(outside)} outside the tolerance{culprit}"
