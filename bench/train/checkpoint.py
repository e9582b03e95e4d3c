"""Saves and loads a training run: everything that its next step depends on, in a file that is replaced atomically."""

from __future__ import annotations

import io
import operator
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.bench.train.step.train_step import TrainStep
from penstock.loaders.system.durable_file import make_private_folder, replace_file
from penstock.loaders.system.real_path import real_path
from penstock.pipelines.errors import LoaderError

_VERSION = 1
_SAME_IMAGES = ("seed", "batch_size", "drop_last", "pad")  # validation may differ in these: it serves each image once
# Settings that may change on resume: they control where and how fast a run computes, not what. (World size, too.)
_FREE = frozenset(
    {"device", "batch_size", "accumulate", "channels_last", "cudnn_benchmark", "compile", "inplace", "kernel"}
    | {"checkpointing", "segments", "profile", "anomaly", "tf32"}
)
_LENGTH = ("epochs", "schedule_epochs")  # may grow on resume


@dataclass(kw_only=True)
class RunProgress:
    """Hold the progress of a run.

    Attributes:
        epoch: number of the current epoch.
        updates: number of updates in it so far.
        totals: this rank's sums of loss and of labelled samples in it so far, float64 [2].
    """

    epoch: int
    updates: int
    totals: Tensor

    @classmethod
    def start_of(cls, epoch: int, device: str) -> RunProgress:
        """Return the progress at the start of an epoch."""
        return cls(epoch=epoch, updates=0, totals=torch.zeros(2, dtype=torch.float64, device=device))


def save_checkpoint(
    path: Path,
    step: TrainStep,
    progress: RunProgress,
    *,
    updates_per_epoch: int,
    loader: dict[str, Any],
    validation: dict[str, Any] | None = None,
) -> None:
    """Write model, optimiser, scaler, schedule, progress, random state, loader state and validation set's identity.

    A symbolic link is followed: its target is replaced. Raises OSError.
    """
    device = torch.device(step.settings.device)
    state = {
        "version": _VERSION,
        "settings": _identity(step),
        "updates_per_epoch": updates_per_epoch,
        "epoch": progress.epoch,
        "updates": progress.updates,
        "totals": progress.totals.cpu(),
        "model": step.module.state_dict(),
        "optimizer": step.optimizer.state_dict(),
        "scaler": step.scaler.state_dict(),
        "schedule": step.schedule.state_dict() if step.schedule else None,
        "random": torch.get_rng_state(),
        "random_cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "loader": loader,
        "validation": validation,
    }
    buffer = io.BytesIO()
    torch.save(state, buffer)
    file = real_path(path)
    make_private_folder(os.path.dirname(file))
    replace_file(file, buffer.getvalue())


def load_checkpoint(
    path: Path, step: TrainStep, *, updates_per_epoch: int, validation: dict[str, Any] | None = None
) -> tuple[RunProgress, dict[str, Any]]:
    """Restore step and random generators; return (progress, loader state).

    validation: identity of the validation set, which must equal the saved one unless either is None.

    Raises LoaderError E-STATE if the file is not a checkpoint, is damaged, or would not continue the same run; OSError
    if it cannot be read.
    """
    state = _read(path)
    try:
        _check_same_run(path, state, step, updates_per_epoch)
        _check_same_validation(path, state.get("validation"), validation)
        step.module.load_state_dict(state["model"])
        step.optimizer.load_state_dict(state["optimizer"])
        if any(step.optimizer.defaults.keys() - group.keys() for group in step.optimizer.param_groups):
            raise _unusable(path, "its optimiser is another version")  # lars and lamb before timm
        step.scaler.load_state_dict(state["scaler"])
        _restore_schedule(step, state)
        torch.set_rng_state(state["random"])
        if state["random_cuda"] is not None and torch.device(step.settings.device).type == "cuda":
            torch.cuda.set_rng_state(state["random_cuda"], torch.device(step.settings.device))
        totals = state["totals"].to(step.settings.device, torch.float64).reshape(2)
        epoch, updates = operator.index(state["epoch"]), operator.index(state["updates"])
        return RunProgress(epoch=epoch, updates=updates, totals=totals), dict(state["loader"])
    except LoaderError:
        raise
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unusable(path, f"it does not fit this run ({error})") from error


def _read(path: Path) -> dict[str, Any]:
    content = io.BytesIO(path.read_bytes())
    try:
        damaged = zipfile.ZipFile(content).testzip()  # torch.load does not verify checksums
        if damaged is not None:
            raise zipfile.BadZipFile(damaged)
        content.seek(0)
        state = torch.load(content, map_location="cpu", weights_only=True)
    except Exception as error:  # torch passes on any error of its zip and pickle readers
        raise _unusable(path, f"it cannot be read ({type(error).__name__})") from error
    if not isinstance(state, dict) or type(state.get("version")) is not int or state["version"] != _VERSION:
        raise _unusable(path, "it is not a checkpoint of this version of penstock train")
    return state


def _restore_schedule(step: TrainStep, state: dict[str, Any]) -> None:
    """Restore the schedule; a run that has grown continues from here on the longer schedule."""
    if step.schedule is None:
        return
    saved, made = state["settings"], state["schedule"]["last_epoch"]
    if (saved.get("schedule_epochs") or saved["epochs"]) == step.settings.scheduled_epochs:
        step.schedule.load_state_dict(state["schedule"])
        return
    # A schedule sets the rate of its next step: go one step back, then make that step.
    counts = {"last_epoch": made - 1, "_step_count": state["schedule"]["_step_count"]}
    step.schedule.load_state_dict({**step.schedule.state_dict(), **counts})
    step.schedule.step()


def _identity(step: TrainStep) -> dict[str, Any]:
    settings = step.settings
    return {name: getattr(settings, name) for name in sorted(settings.__dataclass_fields__) if name not in _FREE}


def _check_same_run(path: Path, state: dict[str, Any], step: TrainStep, updates_per_epoch: int) -> None:
    for name, mine in _identity(step).items():
        saved = state["settings"].get(name)
        if name == "epochs" and mine < saved:
            raise _unusable(path, f"it was saved with epochs={saved}, which may only grow, and this run has {mine}")
        if saved != mine and name not in _LENGTH:
            raise _unusable(path, f"it was saved with {name}={saved!r}, this run has {mine!r}")
    if state["updates_per_epoch"] != updates_per_epoch:
        raise _unusable(
            path, f"it was saved with {state['updates_per_epoch']} updates per epoch, this run has {updates_per_epoch}"
        )


def _check_same_validation(path: Path, saved: dict[str, Any] | None, mine: dict[str, Any] | None) -> None:
    if not saved or not mine:
        return
    for name in dict.fromkeys([*saved, *mine]):
        if name not in _SAME_IMAGES and saved.get(name) != mine.get(name):
            cause = f"its run was validated on other images: {name} was {saved.get(name)!r} and is {mine.get(name)!r}"
            fix = "resume with the same validation set and size, or with --no-strict"
            raise LoaderError("E-STATE", cause, path=str(path), fix=fix)


def _unusable(path: Path, cause: str) -> LoaderError:
    fix = "resume with the same settings, data and global batch, or start anew without --resume"
    return LoaderError("E-STATE", cause, path=str(path), fix=fix)
