"""`penstock bench`: how fast, what limits it, which call to paste."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.bench import options as common

if TYPE_CHECKING:
    from penstock.bench.record import BenchRecord, BenchSettings
    from penstock.bench.verdict import Verdict

_OWN_BYTES = 150 << 20  # of the samples and batches that a run holds beside its loader: 340 MiB were seen


def bench(
    data: common.Data,
    backend: common.Backend = "torch",
    cache: common.Cache = None,
    entries: Annotated[int | None, typer.Option(min=1, help="Serve DATA as so many images, again and again.")] = None,
    decoder: common.Decoder = "auto",
    workers: common.Workers = None,
    batch_size: common.BatchSize = 64,
    size: common.Size = 224,
    device: common.Device = "auto",
    dtype: Annotated[
        str, typer.Option(help="What the loader hands out: float32, float16, bfloat16, uint8.")
    ] = "float32",
    model: Annotated[str, typer.Option(help="resnet18, resnet50, a timm name, or none.")] = "resnet18",
    amp: Annotated[str, typer.Option(help="Mixed precision of the model: off, bf16 or fp16.")] = "off",
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of each measurement in each round.")] = 4.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the measurements alternate.")] = 3,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also the loader everyone writes; for dali also DALI's own pipeline.")
    ] = False,
    tune: Annotated[
        bool | None, typer.Option(help="Search the backend's knobs first.", show_default="on for dali")
    ] = None,
    seed: common.Seed = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the record here.")] = None,
    save: Annotated[
        str | None, typer.Option(help="Save the choice as this profile ('default': for backend auto).")
    ] = None,
) -> None:
    """Measure loader, model and both, next to their ceilings in the same run; say what limits and what to change."""
    from penstock.bench.record import BenchSettings
    from penstock.bench.report import print_record
    from penstock.bench.verdict import judge

    settings = BenchSettings(
        backend=backend,
        cache=None if cache is None else str(cache),
        entries=entries,
        decoder=decoder,
        workers=workers,
        batch_size=batch_size,
        size=size,
        device=common.resolve_device(device),
        dtype=dtype,
        model=None if model == "none" else model,
        amp=amp,  # type: ignore[arg-type]
        seconds=seconds,
        rounds=rounds,
        baseline=baseline,
        tune=tune,
        seed=seed,
    )
    record = _measure(common.training_folder(data), settings)
    verdict = judge(record, str(data))
    print_record(record, verdict)
    if json_file:
        _write_record(record, verdict, json_file)
    if save:
        _save_choice(record, save)


def _write_record(record: BenchRecord, verdict: Verdict, path: Path) -> None:
    told = {"limit": verdict.limit, "sentence": verdict.sentence, "advice": [asdict(each) for each in verdict.advice]}
    common.write_json(path, {**record.as_dict(), "verdict": told})


def _measure(data: Path, settings: BenchSettings) -> BenchRecord:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from penstock.bench.bench_run import BenchRun
    from penstock.bench.doctor import DoctorSettings, ensure_room

    ensure_room(DoctorSettings.of(settings), _OWN_BYTES)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=None)
        run = BenchRun(
            data,
            settings,
            lambda done, total, what: progress.update(task, completed=done, total=total, description=what),
        )
        progress.console.print(run.source.describe())
        if run.space:
            knobs = ", ".join(run.space)
            progress.console.print(f"searching {knobs} first; --no-tune measures with their defaults")
        return run.run()


def _save_choice(record: BenchRecord, name: str) -> None:
    from penstock.loaders.profile import Profile, save_profile

    chosen = Profile(
        backend=str(record.loader["backend"]),
        decoder=record.decoder,
        workers=record.workers,
        prefetch=int(str(record.loader["prefetch"])) if "prefetch" in record.loader else None,
        cpus=int(str(record.environment["cpus"])),
        images_per_s=round(record.rate("loader") or 0.0, 1),
        options={name: value for name, value in record.options.items() if name != "prefetch"},
    )
    print(f"saved to {save_profile(chosen, name)}: create_loader(..., backend='auto', profile={name!r}) takes it")
