"""`penstock ablate`: measures the gain in images/s and the memory of each training technique on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.bench.commands import shared_options as common
from penstock.bench.probe.data.training_folder import training_folder
from penstock.bench.record.settings import BatchSize, Device, Model, Rounds, Seconds, Seed, Size
from penstock.bench.train.step.technique_settings import TECHNIQUE_GROUPS

if TYPE_CHECKING:
    from penstock.bench.train.ablation import Ablation


@common.takes_settings(techniques=TECHNIQUE_GROUPS)
def ablate(
    data: common.Data,
    model: Model = "resnet18",
    batch_size: BatchSize = 64,
    size: Size = 224,
    device: Device = "auto",
    seconds: Seconds = 4.0,
    rounds: Rounds = 3,
    seed: Seed = 0,
    json_file: common.JsonFile = None,
    *,
    techniques: dict[str, Any],
) -> None:
    """Toggle training techniques one by one from the given settings: images/s and peak memory with and without each.

    The model trains on one resident batch, without a loader. DATA sets only the number of classes.
    """
    from penstock.bench.train.ablation import ablate as run_ablation
    from penstock.bench.train.resident_run import CannotRun, ResidentRun, measure_here, measure_in_child
    from penstock.bench.train.step.models import check_model
    from penstock.bench.train.step.settings import TrainSettings
    from penstock.loaders.front.open_source import open_source
    from penstock.loaders.system.json_file import write_json
    from penstock.loaders.system.progress_bar import ProgressBar

    target = common.resolve_device(device)
    settings = TrainSettings(model=model, device=target, seed=seed, batch_size=batch_size, **techniques)
    check_model(model)
    source = open_source(training_folder(data))
    num_classes = max(2, len(source.classes))
    base = ResidentRun(settings=settings, num_classes=num_classes, batch_size=batch_size, size=size, seconds=seconds)
    # On a CPU, each run gets a process, so that its peak memory is the process's. CUDA's allocator counts by itself.
    measure = measure_in_child if target == "cpu" else measure_here
    with ProgressBar("measuring") as bar:
        try:
            found = run_ablation(base, measure, rounds=rounds, on_run=bar.show)
        except CannotRun as error:
            raise ValueError(f"the base settings cannot be measured here: {error}") from error
    _print(found)
    if json_file:
        write_json(json_file, found.as_dict())


def _print(found: Ablation) -> None:
    from penstock.bench.report.section_types import Section, Table
    from penstock.bench.report.terminal import print_sections

    base = found.base
    about = (
        f"{base.settings.model}, batch {base.batch_size} of {base.size}x{base.size} pixels on {base.settings.device}, "
        f"resident (no loader), median of {found.rounds} rounds: {found.base_images_per_s:,.1f} images/s, "
        f"{_mib(found.base_peak_bytes)} MiB"
    )
    rows = []
    for row in found.rows:
        if row.images_per_s is None or row.peak_bytes is None:
            rows.append((row.name, *[""] * 5, f"not measured: {row.reason}"))
            continue
        on, off = row.images_per_s
        rows.append((row.name, f"{on:,.1f}", f"{off:,.1f}", f"{on / off:.2f}", *map(_mib, row.peak_bytes), ""))
    names = ("images/s with", "without", "times", "MiB with", "without")
    columns = [("technique", "text"), *((name, "number") for name in names), ("", "text")]
    print_sections([Section(title=about, tables=[Table(caption="", columns=columns, rows=rows)])])


def _mib(count: int | None) -> str:
    return "?" if count is None else f"{count / 2**20:,.0f}"
