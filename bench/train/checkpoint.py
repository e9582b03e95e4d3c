"""Saves and loads a training run: all that its next step depends on, in a file that is whole or not there."""

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
_SAME_IMAGES = ("seed", "batch_size", "drop_last", "pad")  # in which validation may differ: it serves each image once
# Settings that may differ when a run goes on: they say where and how fast it computes, not what. (World size, too.)
_FREE = frozenset(
    {"device", "batch_size", "accumulate", "channels_last", "cudnn_benchmark", "compile", "inplace", "kernel"}
    | {"checkpointing", "segments", "profile", "anomaly", "tf32"}
)
_LENGTH = ("epochs", "schedule_epochs")  # which may grow


@dataclass(kw_only=True)
class RunProgress:
    """Say how far a run is.

    Attributes:
        epoch: number of the epoch under way.
        updates: updates made in it.
        totals: this rank's sums of loss and of labelled samples in it, float64 [2].
    """

    epoch: int
    updates: int
    totals: Tensor

    @classmethod
    def start_of(cls, epoch: int, device: str) -> RunProgress:
        """Return the progress at the begin of an epoch."""
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
    """Write model, optimiser, scaler, schedule, progress, random state, the loader's state and what is validated on.

    A link is followed: the file that it names is replaced. Raises OSError.
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
    """Return (progress, the loader's state), with step and generators put back as they were saved.

    validation: identity of the validation set; another one than was saved is refused, unless either is None.

    Raises LoaderError E-STATE if the file is none of ours, is damaged, or is of a run that would go on differently;
    OSError if it cannot be read.
    """
    state = _read(path)
    try:
        _check_same_run(path, state, step, updates_per_epoch)
        _check_same_validation(path, state.get("validation"), validation)
        step.module.load_state_dict(state["model"])
        step.optimizer.load_state_dict(state["optimizer"])
        if any(step.optimizer.defaults.keys() - group.keys() for group in step.optimizer.param_groups):
            raise _unusable(path, "its optimiser is of another version")  # as lars and lamb before they were timm's
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
        damaged = zipfile.ZipFile(content).testzip()  # torch.load checks no checksum
        if damaged is not None:
            raise zipfile.BadZipFile(damaged)
        content.seek(0)
        state = torch.load(content, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its zip and pickle readers stumble over
        raise _unusable(path, f"it cannot be read ({type(error).__name__})") from error
    if not isinstance(state, dict) or type(state.get("version")) is not int or state["version"] != _VERSION:
        raise _unusable(path, "it is no checkpoint of this version of penstock train")
    return state


def _restore_schedule(step: TrainStep, state: dict[str, Any]) -> None:
    """Put the schedule back; of a run that has grown, go on from here along the longer schedule."""
    if step.schedule is None:
        return
    saved, made = state["settings"], state["schedule"]["last_epoch"]
    if (saved.get("schedule_epochs") or saved["epochs"]) == step.settings.scheduled_epochs:
        step.schedule.load_state_dict(state["schedule"])
        return
    # A schedule sets the rate of its next step: one back, then that one.
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
            raise _unusable(path, f"it was saved with epochs={saved}, which may grow, and this run has {mine}")
        if saved != mine and name not in _LENGTH:
            raise _unusable(path, f"it was saved with {name}={saved!r}, this run has {mine!r}")
    if state["updates_per_epoch"] != updates_per_epoch:
        raise _unusable(
            path, f"its run makes {state['updates_per_epoch']} updates per epoch, this one {updates_per_epoch}"
        )


def _check_same_validation(path: Path, saved: dict[str, Any] | None, mine: dict[str, Any] | None) -> None:
    if not saved or not mine:
        return
    for name in dict.fromkeys([*saved, *mine]):
        if name not in _SAME_IMAGES and saved.get(name) != mine.get(name):
            cause = f"its run was validated on other images: {name} was {saved.get(name)!r} and is {mine.get(name)!r}"
            fix = "resume with the validation set and size it was saved with, or with --no-strict"
            raise LoaderError("E-STATE", cause, path=str(path), fix=fix)


def _unusable(path: Path, cause: str) -> LoaderError:
    fix = "resume with the settings, data and global batch it was saved with, or start anew without --resume"
    return LoaderError("E-STATE", cause, path=str(path), fix=fix)
