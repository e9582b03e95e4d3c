"""`penstock bench`: measures how fast a data set loads, says what limits it, and prints the call to paste."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.bench.commands import shared_options as common
from penstock.bench.commands.data_options import takes_data_options
from penstock.bench.probe.data.training_folder import training_folder

if TYPE_CHECKING:
    from penstock.bench.record.bench_record import BenchRecord, BenchSettings

_OWN_BYTES = 150 << 20  # for samples and batches that a run holds besides its loader; 340 MiB were seen


@takes_data_options
def bench(  # noqa: PLR0913  a command's options are its parameters
    data: common.Data,
    backend: Annotated[
        str, typer.Option(help="all (those that run here, compared), torch, hdf5, dali, or auto: the saved profile.")
    ] = "all",
    cache: common.Cache = None,
    entries: Annotated[int | None, typer.Option(min=1, help="Serve DATA repeatedly, as so many images.")] = None,
    decoder: common.Decoder = "auto",
    workers: common.Workers = None,
    batch_size: common.BatchSize = 64,
    size: common.Size = 224,
    device: common.Device = "auto",
    dtype: Annotated[
        str | None,
        typer.Option(
            help="dtype of the images: float32, float16, bfloat16, uint8.",
            show_default="what the model computes in, by --amp",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="resnet18, resnet50, a timm name, or none.", show_default="resnet18 on a GPU, else none"),
    ] = None,
    amp: Annotated[str, typer.Option(help="Mixed precision of the model: off, bf16 or fp16.")] = "off",
    compile: Annotated[
        str, typer.Option(help="torch.compile of the model: off, default, reduce-overhead or max-autotune.")
    ] = "off",
    budget: Annotated[float, typer.Option(min=1, help="Seconds that the whole run may take.")] = 120.0,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="No budget: a search of 60 s, then 3 rounds of everything.")
    ] = False,
    seconds: common.Seconds = 4.0,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds at most.", show_default="until they agree, or time is up; 3 with --thorough"),
    ] = None,
    baseline: Annotated[bool, typer.Option("--baseline", help="Also measure the usual loader.")] = False,
    tune: Annotated[
        bool | None, typer.Option(help="Search the settings first.", show_default="on for all, dali, and with a limit")
    ] = None,
    tune_seconds: Annotated[
        float | None,
        typer.Option(help="How long that search may take.", show_default="0.4 of the budget; 60 with --thorough"),
    ] = None,
    max_cpu: Annotated[
        float | None, typer.Option(metavar="CORES", help="Most processors that the loader may keep busy.")
    ] = None,
    max_memory: Annotated[
        float | None, typer.Option(metavar="MB", help="Most memory that the loader and its workers may take.")
    ] = None,
    apply: Annotated[bool, typer.Option(help="Try the verdict's advice where the tool can; measure it.")] = True,
    max_bad: common.MaxBad = 0.01,
    seed: common.Seed = 0,
    json_file: common.JsonFile = None,
    save: Annotated[
        str | None, typer.Option(help="Save the choice as this profile ('default': for backend auto).")
    ] = None,
    report: common.Page = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print everything that was measured, not only a summary.")
    ] = False,
    *,
    data_options: dict[str, Any],
) -> None:
    """Measure how fast the data load, next to ceilings in the same run; say what limits and what makes it faster."""
    options: dict[str, Any] = dict(locals())  # each field of BenchSettings is an option

    from penstock.bench.record.bench_record import BenchSettings
    from penstock.bench.report.page import about_text, page, record_sections, write_page
    from penstock.bench.report.section_types import Section
    from penstock.bench.report.sections_summary import summary_section
    from penstock.bench.report.terminal import print_sections
    from penstock.bench.verdict.judge import without_paths
    from penstock.loaders.system.json_file import write_json

    asked = {name: options[name] for name in BenchSettings.__dataclass_fields__}
    asked["cache"] = None if cache is None else str(cache)
    asked["dtype"] = dtype or {"bf16": "bfloat16", "fp16": "float16"}.get(amp, "float32")
    asked["device"] = common.resolve_device(device)
    wanted = model or ("none" if asked["device"] == "cpu" else "resnet18")
    asked["model"] = None if wanted == "none" else wanted
    if thorough:
        asked["budget"] = None

    def keep(record: BenchRecord) -> None:
        if json_file:
            write_json(json_file, without_paths(record).as_dict())

    record = _measure(data, BenchSettings(**asked), keep)
    everything = [Section(title=about_text(record)), *record_sections(record)] if verbose else []
    print_sections([*everything, summary_section(record, whole=verbose)])
    keep(record)
    if report:
        write_page(page(without_paths(record)), report)
        print(f"report written to {report}")
    if save:
        _save_choice(record, save)


def _measure(data: str, settings: BenchSettings, keep: Callable[[BenchRecord], None]) -> BenchRecord:
    """Run the benchmark and show how it goes on.

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
    found = BenchData(training_folder(data), settings)  # which may show bars of its own: an index, a cache
    with LiveTable(lambda: budget.left) as table:
        table.print(found.source.describe())
        if settings.tunes:
            what = "the backends" if settings.backend == "all" else f"settings of {settings.backend}"
            table.print(f"comparing {what} first, for at most {settings.search_seconds:.0f} s (--no-tune: defaults)")
        display = Display(begin=table.begin, measured=table.measured, recorded=keep)
        return run_benchmark(found, data, settings, budget, display)


def _check(settings: BenchSettings) -> None:
    """Raise ValueError for settings that cannot work, before the data is looked at."""
    from penstock.bench.record.bench_record import ALL_BACKENDS
    from penstock.bench.train.step.models import check_model
    from penstock.bench.train.step.settings import TrainSettings
    from penstock.loaders.front.create import check_arguments

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
    print(f"saved to {save_profile(chosen, name)}: create_loader(..., backend='auto', profile={name!r}) takes it")
