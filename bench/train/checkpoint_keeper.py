"""Decides when a run saves itself: after each epoch, every N updates, on a signal, and before a planned stop."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any

import torch
import torch.distributed as dist

from penstock.bench.train.checkpoint import RunProgress, load_checkpoint, save_checkpoint
from penstock.bench.train.evaluate import sum_over_ranks
from penstock.bench.train.rank_group import gather_from_ranks
from penstock.bench.train.step.technique_settings import CheckpointPlan
from penstock.bench.train.step.train_step import TrainStep
from penstock.bench.train.stop_signals import STOP_SIGNALS, SignalExit, ignore_more_signals
from penstock.loaders.front.loader import Loader
from penstock.pipelines.errors import LoaderError


class StoppedEarly(Exception):
    """Raised after the run has saved itself and reached `stop_after`."""


class CheckpointKeeper:
    """Saves a run according to its plan; as a context, delays Ctrl-C, SIGTERM and SIGUSR1 to the end of an update.

    All ranks save together; rank 0 writes. A signal to any rank stops all: at each update they exchange on the host,
    without waiting for the device, whether one has arrived, and stop at the next update.
    """

    def __init__(
        self,
        plan: CheckpointPlan,
        step: TrainStep,
        loader: Any,
        *,
        updates_per_epoch: int,
        validation: dict[str, Any] | None = None,
    ) -> None:
        if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
            raise ValueError("checkpoints need a loader with state_dict and load_state_dict, as create_loader makes")
        self._plan, self._step, self._loader, self._updates_per_epoch = plan, step, loader, updates_per_epoch
        self._validation = validation
        self._distributed = dist.is_available() and dist.is_initialized()
        self._group = dist.new_group(backend="gloo") if self._distributed else None
        self._asked: tuple[torch.Tensor, Any] | None = None  # flag and work of the pending exchange
        self._signal = 0  # number of the received signal; 0 for none
        self._last: tuple[RunProgress, dict[str, Any], torch.Tensor] | None = None  # with state of loader and generator
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> CheckpointKeeper:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, *STOP_SIGNALS):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._hold)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        if self._previous and self._signal:
            ignore_more_signals()

    def _hold(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._signal = number  # torchrun passes on a second one, which has no effect

    def restore(self) -> RunProgress:
        """Return where the run begins: at the checkpoint if the plan resumes and the file exists, else at the start.

        Raises LoaderError E-STATE if ranks would begin at different places.
        """
        if not (self._plan.resume and self._plan.file.exists()):
            progress = RunProgress.start_of(0, self._step.settings.device)
        else:
            progress, loader = load_checkpoint(
                self._plan.file,
                self._step,
                updates_per_epoch=self._updates_per_epoch,
                validation=self._validation if self._plan.strict else None,
            )
            self._loader.load_state_dict(loader, **({} if self._plan.strict else {"strict": False}))
            if self._distributed and dist.get_rank() > 0:
                progress.totals.zero_()  # the file contains the sums of all ranks, which rank 0 continues
        self._check_same_start(progress)
        return progress

    def _check_same_start(self, progress: RunProgress) -> None:
        if self._group is None:
            return
        own = torch.tensor([progress.epoch, progress.updates])
        starts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(starts, own, group=self._group)
        if any(not torch.equal(own, start) for start in starts):
            where = ", ".join(f"{rank}: epoch {start[0] + 1}, update {start[1]}" for rank, start in enumerate(starts))
            fix = "put the checkpoint on storage that all nodes share"
            cause = f"the ranks would begin at different places ({where})"
            raise LoaderError("E-STATE", cause, path=str(self._plan.file), fix=fix)

    def after_update(self, progress: RunProgress) -> None:
        """Save if due. Raises SignalExit after a signal, StoppedEarly after `stop_after` updates."""
        made = self._step.updates
        self._last = replace(progress, totals=progress.totals.clone()), self._loader.state_dict(), torch.get_rng_state()
        number = self._any_signal()
        stopping = made == self._plan.stop_after
        finished = progress.updates == self._updates_per_epoch
        if number or stopping or finished or (self._plan.checkpoint_every and made % self._plan.checkpoint_every == 0):
            self._save(progress)
        if number:
            raise SignalExit(number, note=self._where(progress))
        if stopping:
            raise StoppedEarly

    def between_updates(self, progress: RunProgress) -> None:
        """Raise SignalExit after a signal while a saved epoch is validated; several ranks continue."""
        if self._signal and not self._distributed:
            raise SignalExit(self._signal, note=self._where(progress))

    def after_loader_error(self, error: LoaderError) -> None:
        """Raise SignalExit if the loader failed because of a signal; return otherwise.

        A batch system may signal the loader's workers too, which kills a worker that is still starting. Then no further
        update is possible, so the run is saved as of its last update (batch norm's statistics may already include
        batches of the next one). With several ranks nothing is saved, because their sums cannot be collected any more.
        """
        if not self._signal:
            return
        if self._last is None or self._distributed:
            note = "not saved, because the loader's workers ended before the update: an older checkpoint is kept"
            raise SignalExit(self._signal, note=note) from error
        progress, loader, random = self._last
        torch.set_rng_state(random)
        self._write(progress, loader)
        raise SignalExit(self._signal, note=self._where(progress)) from error

    def _where(self, progress: RunProgress) -> str:
        return f"saved to {str(self._plan.file)!r} after update {progress.updates} of epoch {progress.epoch + 1}"

    def _any_signal(self) -> int:
        if self._group is None:
            return self._signal
        # Started now and read after the next update: by then all ranks have started it, so that none waits.
        before, flag = self._asked, torch.tensor([self._signal])
        work = dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._asked = flag, work
        if before is None:
            return 0
        before[1].wait()
        return int(before[0].item())

    def _save(self, progress: RunProgress) -> None:
        totals = sum_over_ranks(progress.totals.clone())
        state = self._loader.state_dict()
        if isinstance(self._loader, Loader):
            ledgers = gather_from_ranks(state["ledgers"], self._step.settings.device)
            state["ledgers"] = [ledger for of_rank in ledgers for ledger in of_rank]
        if not self._distributed or dist.get_rank() == 0:
            self._write(RunProgress(epoch=progress.epoch, updates=progress.updates, totals=totals), state)

    def _write(self, progress: RunProgress, loader: dict[str, Any]) -> None:
        save_checkpoint(
            self._plan.file,
            self._step,
            progress,
            updates_per_epoch=self._updates_per_epoch,
            loader=loader,
            validation=self._validation,
        )
