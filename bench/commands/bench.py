"""`penstock bench`: measures how fast a data set loads, reports what limits it, and prints the call to paste."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.bench.commands import shared_options as common
from penstock.bench.commands.data_options import DataOptions
from penstock.bench.probe.data.training_folder import training_folder
from penstock.bench.record.settings import ALL_BACKENDS, BenchSettings, Device

if TYPE_CHECKING:
    from penstock.bench.record.bench_record import BenchRecord

_OWN_BYTES = 150 << 20  # samples and batches of a run besides those of its loader; up to 340 MiB were measured


@common.takes_settings(settings=BenchSettings, data_options=DataOptions)
def bench(
    data: common.Data,
    device: Device = "auto",
    thorough: Annotated[
        bool, typer.Option("--thorough", help="No budget: search for 60 s, then measure everything in 3 rounds.")
    ] = False,
    json_file: common.JsonFile = None,
    save: Annotated[
        str | None, typer.Option(help="Save the choice as this profile ('default': for backend auto).")
    ] = None,
    report: common.Page = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print everything that was measured, not only a summary.")
    ] = False,
    *,
    settings: dict[str, Any],
    data_options: dict[str, Any],
) -> None:
    """Measure how fast the data loads, and its ceilings in the same run; report what limits it and what would help."""
    from penstock.bench.report.page import about_text, page, record_sections, write_page
    from penstock.bench.report.section_types import Section
    from penstock.bench.report.sections_summary import summary_section
    from penstock.bench.report.terminal import print_sections
    from penstock.bench.verdict.judge import without_paths
    from penstock.loaders.system.json_file import write_json

    device = common.resolve_device(device)
    wanted = settings["model"] or ("none" if device == "cpu" else "resnet18")
    settings["model"] = None if wanted == "none" else wanted
    settings["dtype"] = settings["dtype"] or {"bf16": "bfloat16", "fp16": "float16"}.get(settings["amp"], "float32")
    if thorough:
        settings["budget"] = None

    def keep(record: BenchRecord) -> None:
        if json_file:
            write_json(json_file, without_paths(record).as_dict())

    record = _measure(data, BenchSettings(**settings, device=device, data_options=data_options), keep)
    everything = [Section(title=about_text(record)), *record_sections(record)] if verbose else []
    print_sections([*everything, summary_section(record, whole=verbose)])
    keep(record)
    if report:
        write_page(page(without_paths(record)), report)
        print(f"report written to {report}")
    if save:
        _save_choice(record, save)


def _measure(data: str, settings: BenchSettings, keep: Callable[[BenchRecord], None]) -> BenchRecord:
    """Run the benchmark and show its progress.

    keep: called with the record so far after each round.
    """
    from penstock.bench.checks.doctor import ensure_loader_fits
    from penstock.bench.checks.finding import DoctorSettings
    from penstock.bench.probe.search.candidate import BenchData
    from penstock.bench.report.live_table import LiveTable
    from penstock.bench.run.benchmark import run_benchmark
    from penstock.bench.run.rounds import Display
    from penstock.bench.run.time_budget import TimeBudget

    _check(settings)
    budget = TimeBudget.of_this_process(settings.budget)
    ensure_loader_fits(DoctorSettings.of(settings), _OWN_BYTES)
    found = BenchData(training_folder(data), settings)  # may show progress bars: indexing, building a cache
    with LiveTable(lambda: budget.left) as table:
        table.print(found.source.describe())
        if settings.tunes:
            what = "the backends" if settings.backend == "all" else f"settings of {settings.backend}"
            table.print(f"comparing {what} first, for at most {settings.search_seconds:.0f} s (--no-tune: defaults)")
        display = Display(begin=table.begin, measured=table.measured, recorded=keep)
        return run_benchmark(found, data, settings, budget, display)


def _check(settings: BenchSettings) -> None:
    """Raise ValueError for settings that cannot work, before the data is opened."""
    from penstock.bench.train.step.models import check_model
    from penstock.bench.train.step.settings import TrainSettings
    from penstock.loaders.front.advance_checks import check_arguments

    backend = "torch" if settings.backend == ALL_BACKENDS else settings.backend
    check_arguments(backend=backend, decoder=settings.decoder)
    TrainSettings(device=settings.device, amp=settings.amp, compile=settings.compile)
    if settings.model is not None:
        check_model(settings.model)


def _save_choice(record: BenchRecord, name: str) -> None:
    """Save the record's choice as the profile `name`, unless other programs kept the machine too busy for it."""
    from penstock.bench.report.text import hindrance_text
    from penstock.loaders.data.remote.remote_source import REMOTE_OPTIONS
    from penstock.loaders.front.profile import Profile, save_profile

    if hindrance_text(record):
        print(
            f"not saved as profile {name!r}: other programs kept the processors busy; measure again when they are free"
        )
        return
    choice = record.choice
    of_data = (*REMOTE_OPTIONS, "shuffle")  # a profile is for any data
    options = {name: value for name, value in choice.options.items() if name not in of_data}
    workers, prefetch = (
        None if n is None else int(n) for n in (options.pop("workers", None), options.pop("prefetch", None))
    )
    chosen = Profile(
        backend=choice.backend,
        decoder=choice.decoder,
        workers=workers,
        prefetch=prefetch,
        cpus=int(str(record.environment["cpus"])),
        images_per_s=round(choice.images_per_s or 0.0, 1),
        options=options,
    )
    print(f"saved to {save_profile(chosen, name)}: create_loader(..., backend='auto', profile={name!r}) uses it")
