"""When a run saves itself: every so many updates, at SIGTERM, and before it is told to stop."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
import torch.distributed as dist

from penstock.bench.checkpoint import Progress, load_checkpoint, save_checkpoint
from penstock.bench.evaluate import sum_over_ranks
from penstock.bench.signals import SignalExit, heed_no_more
from penstock.bench.train_step import TrainStep
from penstock.pipelines.errors import LoaderError


@dataclass(frozen=True, kw_only=True)
class CheckpointPlan:
    """file: where the run saves itself. every: after so many updates, None for at SIGTERM alone.

    resume: go on from the file if it is there. stop_after: save and stop after so many updates of this process.
    Raises ValueError for numbers below 1.
    """

    file: Path
    every: int | None = None
    resume: bool = False
    stop_after: int | None = None

    def __post_init__(self) -> None:
        for name in ("every", "stop_after"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is at least 1, not {value!r}")


class StoppedEarly(Exception):
    """The run has saved itself and stops, because `stop_after` says so."""


class CheckpointKeeper:
    """Saves a run as its plan says; as a context it holds SIGTERM back until an update is finished.

    All ranks save together, rank 0 writes. SIGTERM to any of them stops all: each update they tell each other, on the
    host, without waiting for the device, and heed it one update later.
    """

    def __init__(self, plan: CheckpointPlan, step: TrainStep, loader: Any, *, updates_per_epoch: int) -> None:
        if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
            raise ValueError("checkpoints need a loader with state_dict and load_state_dict, as create_loader makes")
        self._plan, self._step, self._loader, self._updates_per_epoch = plan, step, loader, updates_per_epoch
        self._distributed = dist.is_available() and dist.is_initialized()
        self._group = dist.new_group(backend="gloo") if self._distributed else None
        self._asked: tuple[torch.Tensor, Any] | None = None
        self._terminated = False
        self._last: tuple[Progress, dict[str, Any], torch.Tensor] | None = None  # after the last update
        self._previous: Any = None

    def __enter__(self) -> CheckpointKeeper:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
            self._previous = signal.signal(signal.SIGTERM, self._hold)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)
            if self._terminated:
                heed_no_more()

    def _hold(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._terminated = True  # a second one changes nothing: torchrun passes on what the batch system sent here too

    def restore(self) -> Progress:
        """Where the run begins: where the file left it if the plan says so and there is one, else at its start."""
        if not (self._plan.resume and self._plan.file.exists()):
            return Progress.start_of(0, self._step.settings.device)
        progress, loader = load_checkpoint(self._plan.file, self._step, updates_per_epoch=self._updates_per_epoch)
        self._loader.load_state_dict(loader)
        if self._distributed and dist.get_rank() > 0:
            progress.totals.zero_()  # they are the sums of all ranks
        return progress

    def after_update(self, progress: Progress) -> None:
        """Save if it is time. Raises SignalExit after SIGTERM, StoppedEarly after `stop_after` updates."""
        made = self._step.updates
        self._last = replace(progress, totals=progress.totals.clone()), self._loader.state_dict(), torch.get_rng_state()
        terminated = self._any_terminated()
        stopping = made == self._plan.stop_after
        if terminated or stopping or (self._plan.every and made % self._plan.every == 0):
            self._save(progress)
        if terminated:
            raise SignalExit(signal.SIGTERM, note=self._where(progress))
        if stopping:
            raise StoppedEarly

    def after_loss(self, error: LoaderError) -> None:
        """What to do when the loader fails. Raises SignalExit if SIGTERM was the cause; returns otherwise.

        A batch system signals the loader's workers as well, and those that have only begun to start do not outlast it:
        then no update comes any more, and the last one is saved (of a half accumulated one, batch norm keeps what it
        has seen). Not with several ranks, whose sums are apart.
        """
        if not self._terminated:
            return
        if self._last is None or self._distributed:
            note = "not saved, since the loader's workers were ended before the update: an older checkpoint stands"
            raise SignalExit(signal.SIGTERM, note=note) from error
        progress, loader, random = self._last
        torch.set_rng_state(random)
        save_checkpoint(self._plan.file, self._step, progress, updates_per_epoch=self._updates_per_epoch, loader=loader)
        raise SignalExit(signal.SIGTERM, note=self._where(progress)) from error

    def _where(self, progress: Progress) -> str:
        return f"saved to {str(self._plan.file)!r} after update {progress.updates} of epoch {progress.epoch + 1}"

    def _any_terminated(self) -> bool:
        if self._group is None:
            return self._terminated
        # Started now and read after the next update: by then all ranks have come by, and nobody waits.
        before, flag = self._asked, torch.tensor([int(self._terminated)])
        work = dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._asked = flag, work
        if before is None:
            return False
        before[1].wait()
        return bool(before[0].item())

    def _save(self, progress: Progress) -> None:
        totals = sum_over_ranks(progress.totals.clone())
        if self._distributed and dist.get_rank() > 0:
            return
        whole = Progress(epoch=progress.epoch, updates=progress.updates, totals=totals)
        state = self._loader.state_dict()
        save_checkpoint(self._plan.file, self._step, whole, updates_per_epoch=self._updates_per_epoch, loader=state)
