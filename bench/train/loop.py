"""Trains on any loader of (images, labels), with one report per epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from penstock.bench.record.clock import Clock, Rate, StepTimer, Stopwatch
from penstock.bench.record.loader_rate import AnyBatch, Batches
from penstock.bench.train.checkpoint import RunProgress
from penstock.bench.train.checkpoint_keeper import CheckpointKeeper, StoppedEarly
from penstock.bench.train.evaluate import Evaluation, evaluate, sum_over_ranks
from penstock.bench.train.profiling import PROFILED_STEPS, profiled_steps
from penstock.bench.train.rank_group import gather_from_ranks
from penstock.bench.train.step.settings import TrainSettings
from penstock.bench.train.step.technique_settings import CheckpointPlan
from penstock.bench.train.step.torch_switches import torch_switches
from penstock.bench.train.step.train_step import TrainStep, num_labelled, on_device
from penstock.loaders.front.loader import Loader
from penstock.loaders.order.agreement import refuse_disagreement
from penstock.loaders.order.ledger import EpochLedger
from penstock.pipelines.errors import LoaderError

WARMUP_STEPS = 10
OnStep = Callable[[int, int, int, int], None]
_OF_A_RANK = ("device", "profile")  # settings in which ranks may differ


@dataclass(frozen=True, kw_only=True)
class EpochReport:
    """Report one epoch: loss and accuracy, speed, and use of time.

    Attributes:
        loss: mean over the labelled training samples of all ranks during the whole epoch.
        validation: result of the validation, or None.
        images: labelled training samples of all ranks in the whole epoch, including those before a resume.
        steps: batches of this rank in this process.
        seconds: wall time of those steps.
        validation_seconds: wall time of the validation.
        images_per_s: rate of this rank; None if every step was warm-up.
        wait_share: as in `StepTimes`.
        ledger: `EpochLedger.as_dict` of the samples of all ranks in the whole epoch; None for a loader without a
            ledger.
    """

    epoch: int
    loss: float
    validation: Evaluation | None
    images: int
    steps: int
    seconds: float
    validation_seconds: float
    images_per_s: Rate | None
    wait_share: float
    ledger: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class TrainReport:
    """Report a whole run; `dataclasses.asdict` of it is JSON-serialisable.

    Attributes:
        epochs: reports of the epochs that this process finished.
        seconds: wall time including validation.
        finished: False if it stopped early with a checkpoint.
    """

    settings: TrainSettings
    parameters: int
    epochs: tuple[EpochReport, ...]
    seconds: float
    finished: bool = True


def train(
    model: nn.Module,
    loader: Batches,
    settings: TrainSettings,
    *,
    validation: Batches | None = None,
    on_epoch: Callable[[EpochReport], None] | None = None,
    on_step: OnStep = lambda epoch, done, total, images: None,
    checkpoint: CheckpointPlan | None = None,
) -> TrainReport:
    """Train a classifier for `settings.epochs` epochs, on all ranks of torch.distributed if initialised.

    `loader` yields batches (images, labels, ...) for `on_device` and has a length; its `set_epoch` is called if it
    exists. `validation` is such a loader, evaluated after each epoch. `on_epoch` is called with each epoch's report,
    `on_step` with (epoch, steps done, steps in total, images of this step). `checkpoint` requires a loader with
    `state_dict`; the run then saves itself and ends with SignalExit on Ctrl-C, SIGTERM or SIGUSR1. The first steps of
    the run, at most ten and at most half an epoch, are warm-up and not timed.

    Raises ValueError if the loader is empty, FloatingPointError if the loss of an epoch is not finite, LoaderError
    E-MISUSE if ranks would make different numbers of steps, E-STATE if they would train on different data or with
    different settings, and for a checkpoint of another run.
    """
    watch = Stopwatch()
    _refuse_different_runs(loader, validation, settings)
    steps_per_epoch = _common_length(loader, settings)
    updates_per_epoch = math.ceil(steps_per_epoch / settings.accumulate)
    reports: list[EpochReport] = []
    finished = True
    with _seed_generators(settings), torch_switches(settings), ExitStack() as stack:
        step = TrainStep(model, settings, total_steps=settings.scheduled_epochs * updates_per_epoch)
        keeper = None
        if checkpoint is not None:
            judged = loader_identity(validation)
            keeper = CheckpointKeeper(checkpoint, step, loader, updates_per_epoch=updates_per_epoch, validation=judged)
            stack.enter_context(keeper)
        after_step = stack.enter_context(profiled_steps(settings.profile, settings.device))
        run = _EpochRunner(step, loader, steps_per_epoch, validation, keeper, after_step, on_step)
        progress = keeper.restore() if keeper else RunProgress.start_of(0, settings.device)
        try:
            while progress.epoch < settings.epochs:
                report = run.epoch(progress, warm_up=not reports)
                reports.append(report)
                if on_epoch is not None:
                    on_epoch(report)
                progress = RunProgress.start_of(progress.epoch + 1, settings.device)
        except StoppedEarly:
            finished = False
        except LoaderError as error:
            if keeper is not None:
                keeper.after_loader_error(error)
            raise
    return TrainReport(
        settings=settings,
        parameters=sum(p.numel() for p in model.parameters()),
        epochs=tuple(reports),
        seconds=watch.seconds,
        finished=finished,
    )


@dataclass(frozen=True)
class _EpochRunner:
    """Runs the epochs of one training run."""

    step: TrainStep
    loader: Batches
    steps_per_epoch: int
    validation: Batches | None
    keeper: CheckpointKeeper | None
    after_step: Callable[[], None]
    on_step: OnStep

    def epoch(self, progress: RunProgress, *, warm_up: bool) -> EpochReport:
        """Run the rest of an epoch, then its validation; updates `progress`."""
        step, settings = self.step, self.step.settings
        watch = Stopwatch()
        timer = StepTimer(Clock(settings.device))
        todo = max(0, self.steps_per_epoch - progress.updates * settings.accumulate)
        num_steps = self._steps(progress, timer, todo, min(WARMUP_STEPS, todo // 2) if warm_up else 0) if todo else 0
        times = timer.times()
        loss_sum, labelled = sum_over_ranks(progress.totals.clone()).tolist()
        train_seconds = watch.seconds
        _check_loss(loss_sum, labelled, progress.epoch)

        evaluation = None
        if self.validation is not None:
            _same_buffers_on_all_ranks(step.module)
            evaluation = evaluate(step.module, self._until_stopped(self.validation, progress), settings)
        return EpochReport(
            epoch=progress.epoch,
            loss=loss_sum / labelled,
            validation=evaluation,
            images=int(labelled),
            steps=num_steps,
            seconds=train_seconds,
            validation_seconds=watch.seconds - train_seconds,
            images_per_s=times.images_per_s,
            wait_share=times.wait_share,
            ledger=_ledger_of_all_ranks(self.loader, progress.epoch, settings.device),
        )

    def _steps(self, progress: RunProgress, timer: StepTimer, todo: int, warmup_steps: int) -> int:
        step = self.step
        _set_epoch(self.loader, progress.epoch)
        num_steps, updates = 0, step.updates
        batches = on_device(self._without_draws(self.loader), step.settings)
        for images, labels in timer.watch(batches, lambda batch: batch[0].shape[0]):
            num_steps += 1
            loss = step(images, labels, last=num_steps == todo)
            labelled = num_labelled(labels)
            # Summed on the device and read once per epoch: reading a loss waits for the device, which then is idle.
            progress.totals += torch.stack([loss.double() * labelled, labelled.double()])
            self.after_step()
            self.on_step(progress.epoch, self.steps_per_epoch - todo + num_steps, self.steps_per_epoch, len(labels))
            if num_steps == warmup_steps:
                timer.restart()
            if step.updates > updates:
                updates, progress.updates = step.updates, progress.updates + 1
                if self.keeper is not None:
                    self.keeper.after_update(progress)
        return num_steps

    def _until_stopped(self, loader: Batches, progress: RunProgress) -> Iterator[AnyBatch]:
        for batch in self._without_draws(loader):
            if self.keeper is not None:
                self.keeper.between_updates(progress)
            yield batch

    def _without_draws(self, loader: Batches) -> Batches:
        return loader if self.keeper is None else _with_generator_restored(loader)


def _with_generator_restored(loader: Batches) -> Iterator[AnyBatch]:
    """Yield the loader's batches; restore torch's generator after the draws of starting it, as for a DataLoader.

    Otherwise dropout would depend on the start of workers, and so on whether the run was interrupted.
    """
    state = torch.get_rng_state()
    batches = iter(loader)
    first = next(batches, None)
    torch.set_rng_state(state)
    if first is not None:
        yield first
        yield from batches


def _check_loss(loss_sum: float, num_labelled: float, epoch: int) -> None:
    if num_labelled == 0:
        raise ValueError(f"epoch {epoch} of the training loader had no labelled sample")
    if not math.isfinite(loss_sum):
        raise FloatingPointError(f"the loss of epoch {epoch} is {loss_sum}: lower lr, lengthen warmup or turn amp off")


def _set_epoch(loader: Any, epoch: int) -> None:
    """Set the epoch of the loader or of its DistributedSampler."""
    owner = loader if hasattr(loader, "set_epoch") else getattr(loader, "sampler", None)
    if owner is not None and hasattr(owner, "set_epoch"):
        owner.set_epoch(epoch)


def _ledger_of_all_ranks(loader: Any, epoch: int, device: str) -> dict[str, Any] | None:
    if not isinstance(loader, Loader):
        return None
    whole = EpochLedger(epoch)
    for ledger in gather_from_ranks(loader.ledger(epoch).as_dict(), device):
        whole.add_saved(ledger)
    return whole.as_dict()


def loader_identity(loader: Any) -> dict[str, Any] | None:
    """Return the identity of a loader's images; None if the loader does not define it."""
    return loader.identity() if isinstance(loader, Loader) else None


def _refuse_different_runs(loader: Any, validation: Any, settings: TrainSettings) -> None:
    """Raise LoaderError E-STATE on all ranks if their data or settings differ."""
    about = {name: value for name, value in asdict(settings).items() if name not in _OF_A_RANK}
    for kind, each in (("training ", loader), ("validation ", validation)):
        about |= {f"{kind}{name}": value for name, value in (loader_identity(each) or {}).items()}
    refuse_disagreement(dict(enumerate(gather_from_ranks(about, settings.device))))


def _common_length(loader: Any, settings: TrainSettings) -> int:
    """Return the steps per epoch, equal on all ranks: a rank with more would wait forever for the others' gradients."""
    try:
        steps = len(loader)
    except TypeError:
        raise ValueError("training needs a loader with a length, for the learning-rate schedule") from None
    if steps == 0:
        raise ValueError("the training loader is empty: lower batch_size, or keep the last batch (drop_last=False)")
    if settings.profile is not None and steps * settings.epochs < PROFILED_STEPS:
        raise ValueError(f"profile needs a run of {PROFILED_STEPS} steps, this one has {steps * settings.epochs}")
    if dist.is_available() and dist.is_initialized():
        extremes = torch.tensor([steps, -steps], device=settings.device)
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
        most, least = extremes[0].item(), -extremes[1].item()
        if most != least:
            raise LoaderError(
                "E-MISUSE",
                f"ranks would make {least} to {most} steps per epoch",
                fix="give each rank a loader of the same length, as create_loader does",
                rank=dist.get_rank(),
            )
    return steps


def _same_buffers_on_all_ranks(module: nn.Module) -> None:
    """Copy rank 0's running statistics to all ranks, so that they evaluate the same model."""
    if dist.is_available() and dist.is_initialized():
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0)


@contextmanager
def _seed_generators(settings: TrainSettings) -> Iterator[None]:
    """Seed torch's generators from `settings.seed`, for example for dropout; restore the caller's afterwards."""
    device = torch.device(settings.device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(settings.seed)
        yield
