"""`penstock train`: trains a classifier on a folder of images."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.bench.commands import shared_options as common
from penstock.bench.commands.data_options import DataOptions
from penstock.bench.probe.data.training_folder import training_folder
from penstock.bench.record.settings import BatchSize, Device, MaxBad, Size
from penstock.bench.train.step.technique_settings import TECHNIQUE_GROUPS, AugmentSettings, CheckpointPlan, RunSettings

if TYPE_CHECKING:
    from penstock.bench.train.batch_finder import BatchTrial
    from penstock.bench.train.job import TrainingJob
    from penstock.bench.train.loop import EpochReport

_TUNING = "Finders (the run ends after them)"
_OWN_BYTES = 200 << 20  # weights, gradients and momentum of ResNet-18: 140 MiB; torch modules for training: 60


@common.takes_settings(
    data_options=DataOptions,
    run=RunSettings,
    augmentations=AugmentSettings,
    loading=common.LoadingOptions,
    policy=common.PolicyOptions,
    checkpoints=CheckpointPlan,
    techniques=TECHNIQUE_GROUPS,
)
def train(  # noqa: PLR0913  a command's options are its parameters
    data: common.Data,
    validation: Annotated[
        str | None,
        typer.Option(help="Data to validate on; DATA/val next to DATA/train by default.", parser=common.data_path),
    ] = None,
    validation_subset: Annotated[
        str | None, typer.Option(help="Part of the validation data, as for --subset; all by default.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for train.h5 and val.h5; backend hdf5 or dali.")] = None,
    batch_size: BatchSize = 32,
    size: Size = 64,
    device: Device = "auto",
    max_bad: MaxBad = 0.01,
    rank_timeout: Annotated[
        float | None, typer.Option(min=1, help="Seconds that ranks wait for each other.", show_default="torch's")
    ] = None,
    json_file: common.JsonFile = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="File to save the run to: after each epoch, on Ctrl-C and on SIGTERM.",
            callback=common.savable,
            rich_help_panel="Checkpoints",
        ),
    ] = None,
    find_lr: Annotated[
        Path | None,
        typer.Option(
            help="Sweep the learning rate; write JSON here and a page next to it.",
            callback=common.writable,
            rich_help_panel=_TUNING,
        ),
    ] = None,
    find_batch_size: Annotated[
        bool, typer.Option("--find-batch-size", help="Find the largest batch that fits.", rich_help_panel=_TUNING)
    ] = False,
    memory_budget: Annotated[
        float | None, typer.Option(help="Memory limit in GiB for --find-batch-size.", rich_help_panel=_TUNING)
    ] = None,
    *,
    run: dict[str, Any],
    augmentations: dict[str, Any],
    loading: dict[str, Any],
    policy: dict[str, Any],
    checkpoints: dict[str, Any],
    techniques: dict[str, Any],
    data_options: dict[str, Any],
) -> None:
    """Train on DATA (or DATA/train, validated on DATA/val); print loss, accuracy, images/s and wait of each epoch.

    penstock ablate DATA measures each technique's images/s and memory.
    """
    from penstock.bench.checks.doctor import ensure_loader_fits
    from penstock.bench.checks.finding import DoctorSettings
    from penstock.bench.train.job import TrainingJob
    from penstock.bench.train.rank_group import join_process_group
    from penstock.bench.train.step.settings import TrainSettings
    from penstock.loaders.data.sources.contract import has_targets

    if validation is None and training_folder(data) != data:
        validation = os.path.join(data, "val")
    plan = _plan(checkpoint, checkpoints)
    with join_process_group(common.resolve_device(device), rank_timeout) as target:
        if loading["workers"] is None and target == "cpu":
            loading["workers"] = 1  # the model's threads need the processors: it is far slower than one worker
        wish = DoctorSettings(
            backend=loading["backend"],
            workers=loading["workers"],
            batch_size=batch_size,
            size=size,
            device=target,
            cache=cache,
        )
        ensure_loader_fits(wish, _OWN_BYTES)
        settings = TrainSettings(
            **run,
            **techniques,
            device=target,
            batch_size=batch_size,
            small_inputs=size <= 32 and run["model"].startswith("resnet"),
        )
        job = TrainingJob(
            data=training_folder(data),
            validation=validation,
            settings=settings,
            size=size,
            training={"scale": (augmentations.pop("min_scale"), 1.0), **augmentations},
            policy={**policy, "max_bad": max_bad},
            loading={name: value for name, value in loading.items() if value is not None},
            cache=cache,
            data_options=data_options,
            validation_options={} if validation_subset is None else {"subset": validation_subset},
        )
        _say(job.source.describe())
        if len(job.source.classes) == 1 and not has_targets(job.source):
            _say("there is only one class, so the model learns nothing: the rates count, loss and accuracy do not")
        if find_lr is not None:
            _find_lr(job, find_lr)
        elif find_batch_size:
            _find_batch_size(job, memory_budget)
        else:
            _train(job, plan, json_file)


def _plan(file: Path | None, asked: dict[str, Any]) -> CheckpointPlan | None:
    if file is not None:
        return CheckpointPlan(file=file, **asked)
    if asked["checkpoint_every"] is not None or asked["resume"] or asked["stop_after"] is not None:
        raise ValueError("--checkpoint-every, --resume and --stop-after need --checkpoint FILE")
    return None


def _train(job: TrainingJob, plan: CheckpointPlan | None, json_file: Path | None) -> None:
    if plan is not None and plan.resume:
        _say(f"resuming from {plan.file}" if plan.file.exists() else f"no checkpoint at {plan.file}: starting anew")
    from penstock.bench.report.epoch_bar import EpochBar
    from penstock.bench.train.rank_group import is_first_rank

    with EpochBar(job.settings.epochs, shown=is_first_rank()) as bar:

        def end_epoch(epoch: EpochReport) -> None:
            bar.end()
            _say(_line(epoch))

        report = job.train(checkpoint=plan, on_epoch=end_epoch, on_step=bar.step)
    if plan is not None and not report.finished:
        _say(f"stopped after {plan.stop_after} updates; saved to {plan.file}")
    if json_file:
        _write(json_file, asdict(report))


def _find_lr(job: TrainingJob, file: Path) -> None:
    from penstock.bench.report.page import make_page, write_page
    from penstock.bench.report.sections_choices import sweep_section
    from penstock.bench.train.rank_group import is_first_rank

    sweep, lr = job.sweep_lr()
    document = {**asdict(sweep), "lr": lr}
    _write(file, document)
    _say(f"the loss falls fastest at a learning rate of {sweep.suggestion:.3g}: --lr {lr:.3g}")
    if is_first_rank():
        title = f"The loss falls fastest at a learning rate of {sweep.suggestion:.2g}"
        about = f"{len(sweep.rates):,} updates"
        made = make_page("learning-rate sweep", title, [sweep_section(document)], about=about)
        write_page(made, file.with_suffix(".html"))


def _find_batch_size(job: TrainingJob, budget_gib: float | None) -> None:
    def show(trial: BatchTrial) -> None:
        memory = "" if trial.peak_bytes is None else f"  {trial.peak_bytes / 2**20:8,.0f} MiB"
        _say(f"batch {trial.batch_size:6d}  {'fits' if trial.fits else 'does not fit'}{memory}")

    budget = None if budget_gib is None else int(budget_gib * 2**30)
    found = job.search_batch_size(budget_bytes=budget, on_trial=show)
    if found.largest is None:
        raise ValueError("not even one image fits: choose a smaller model, size or optimiser")
    _say(f"the largest batch that fits: --batch-size {found.largest}")


def _line(report: EpochReport) -> str:
    from penstock.bench.report.terminal import wrap_for_terminal
    from penstock.loaders.order.ledger import EpochLedger

    accuracy = f"  accuracy {report.validation.accuracy:6.1%}" if report.validation else ""
    rate = f"  {report.images_per_s.median:7,.0f} images/s" if report.images_per_s else ""
    waiting = f"  waiting {report.wait_share:4.0%}  {report.seconds:5.1f} s"
    ledger = f"  {EpochLedger.of(report.ledger).line()}" if report.ledger else ""
    return wrap_for_terminal(
        f"epoch {report.epoch + 1:3d}  loss {report.loss:.4f}{accuracy}{rate}{waiting}{ledger}", 11
    )


def _write(file: Path, document: dict[str, Any]) -> None:
    from penstock.bench.train.rank_group import is_first_rank
    from penstock.loaders.system.json_file import write_json

    if is_first_rank():
        write_json(file, document)


def _say(line: str) -> None:
    """Print a line on the first rank only."""
    from penstock.bench.train.rank_group import is_first_rank

    if is_first_rank():
        print(line, flush=True)
