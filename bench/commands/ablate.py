"""`penstock ablate`: what each training technique gains in images/s and costs in memory, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.bench.commands import options as common
from penstock.bench.commands.technique_options import takes_settings
from penstock.bench.data.training_folder import training_folder
from penstock.loaders.system.json_file import write_json

if TYPE_CHECKING:
    from penstock.bench.train.ablation import Ablation


@takes_settings
def ablate(
    data: common.Data,
    model: Annotated[str, typer.Option(help="resnet18, resnet50, or a timm name.")] = "resnet18",
    batch_size: common.BatchSize = 64,
    size: common.Size = 224,
    device: common.Device = "auto",
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of each measurement in each round.")] = 4.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the measurements alternate.")] = 3,
    seed: common.Seed = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the record here.")] = None,
    *,
    techniques: dict[str, Any],
) -> None:
    """Switch training techniques one by one from the settings given: images/s and peak memory with and without each.

    The model trains on one resident batch of the number of classes in DATA, without a loader: nothing else is measured.
    """
    from rich.console import Console
    from rich.progress import Progress

    from penstock.bench.step.settings import TrainSettings
    from penstock.bench.train.ablation import ablate as run
    from penstock.bench.train.resident_run import CannotRun, ResidentRun, measure_here, measure_in_child
    from penstock.loaders.open_source import open_source

    target = common.resolve_device(device)
    settings = TrainSettings(model=model, device=target, seed=seed, batch_size=batch_size, **techniques)
    source = open_source(training_folder(data))
    base = ResidentRun(
        settings=settings,
        num_classes=max(2, len(source.classes)),
        batch_size=batch_size,
        size=size,
        seconds=seconds,
    )
    # On a CPU a process of its own for each run: its peak memory is the process's. CUDA's allocator counts by itself.
    measure = measure_in_child if target == "cpu" else measure_here
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=None)
        try:
            found = run(
                base,
                measure,
                rounds=rounds,
                on_run=lambda done, total: progress.update(task, completed=done, total=total),
            )
        except CannotRun as error:
            raise ValueError(f"the base settings cannot be measured here: {error}") from error
    _print(found)
    if json_file:
        write_json(json_file, found.as_dict())


def _print(found: Ablation) -> None:
    base = found.base
    print(
        f"{base.settings.model}, batch {base.batch_size} of {base.size}x{base.size} pixels on {base.settings.device}, "
        f"resident (no loader), median of {found.rounds} rounds: {found.base_images_per_s:,.1f} images/s, "
        f"{_mib(found.base_peak_bytes)} MiB"
    )
    print(f"{'technique':<34}{'with':>9}{'without':>10}  images/s{'with':>8}{'without':>10}  MiB")
    for row in found.rows:
        if row.images_per_s is None or row.peak_bytes is None:
            print(f"{row.name:<34}not measured: {row.reason}")
            continue
        on, off = row.images_per_s
        print(
            f"{row.name:<34}{on:>9,.1f}{off:>10,.1f}  {f'x {on / off:.2f}':<8}"
            f"{_mib(row.peak_bytes[0]):>8}{_mib(row.peak_bytes[1]):>10}"
        )


def _mib(count: int | None) -> str:
    return "?" if count is None else f"{count / 2**20:,.0f}"
