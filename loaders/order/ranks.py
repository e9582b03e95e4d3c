"""Detection of this process's rank and the world size."""

from __future__ import annotations

import os
import sys
import warnings

import torch.distributed as dist

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.user_warnings import warn_user

_PLACE_FIX = (
    "set RANK and WORLD_SIZE, start torch.distributed before the first batch, or pass rank and world_size; "
    "for a single process, unset the variables"
)
# Launchers other than torchrun: environment variables for the rank of a process, and for the number of ranks.
_LAUNCHERS = {
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE"),
    "mpirun (Open MPI)": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpirun (MVAPICH)": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    "mpirun (PMI)": ("PMI_RANK", "PMI_SIZE"),
}
_group_size = 1  # ranks of torch.distributed when this process last checked


def is_joined() -> bool:
    """Return whether torch.distributed is initialised."""
    return dist.is_available() and dist.is_initialized()


def distributed_place(
    rank: int | None = None, world_size: int | None = None, *, certain: bool = True
) -> tuple[int, int]:
    """Return (rank, world size): the arguments, those of torch.distributed, Ray Train or a launcher, or (0, 1).

    The launchers are torchrun (RANK and WORLD_SIZE), Horovod and mpirun. A launcher may set only WORLD_SIZE if a
    process group that starts later sets the rank: until then `certain=False` assumes rank 0. `certain=True`
    warns if a process reads all of the data although it may be one of several: a task of srun, or a process after
    the end of torch.distributed. Raises ValueError if only one of the two is given or a variable is not a number,
    LoaderError E-MISUSE for one variable without the other, and for launchers that contradict each other.
    """
    global _group_size
    if (rank is None) != (world_size is None):
        raise ValueError("pass both rank and world_size, or neither")
    if rank is not None and world_size is not None:
        return rank, world_size
    if is_joined():
        _group_size = dist.get_world_size()
        return dist.get_rank(), _group_size
    if (place := _ray_place()) is not None:
        return place
    rank, world_size = _variable("RANK"), _variable("WORLD_SIZE")
    if rank is None and (world_size or 1) == 1:
        rank, world_size = _launched_place(certain=certain)
    if certain and (world_size or 1) > 1 and rank is None:
        raise LoaderError(
            "E-MISUSE", f"WORLD_SIZE is {world_size}, but the rank of this process is unknown", fix=_PLACE_FIX
        )
    if certain and (rank or 0) > 0 and world_size is None:
        raise LoaderError("E-MISUSE", f"RANK is {rank}, but the world size is unknown", fix=_PLACE_FIX)
    if certain and rank is None:
        _warn_if_one_of_several()
    return (0 if world_size is None else rank or 0), world_size or 1


def _ray_place() -> tuple[int, int] | None:
    """Return (rank, world size) of one of several workers of Ray Train; None elsewhere.

    Ray's TorchTrainer starts torch.distributed, but other trainers only tell the place to Ray's own context.
    """
    train = sys.modules.get("ray.train")  # a worker has imported it
    if train is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # outside a training function, older versions warn, and say 1
        try:
            context = train.get_context()
            rank, world_size = context.get_world_rank(), context.get_world_size()
        except (RuntimeError, DeprecationWarning):  # newer versions raise
            return None
    return (rank, world_size) if (world_size or 1) > 1 else None


def _launched_place(*, certain: bool) -> tuple[int | None, int | None]:
    """Return (rank, world size) from the variables of a launcher other than torchrun; None for unknown values.

    If `certain`, raises LoaderError E-MISUSE for a size without a rank, and for launchers that contradict each other.
    """
    found = {}
    for launcher, (rank_name, size_name) in _LAUNCHERS.items():
        size = _variable(size_name) or 1
        if size == 1 or (launcher == "mpirun (PMI)" and size == _srun_tasks()):  # srun may set PMI's, too
            continue
        place = _variable(rank_name), size
        if certain and place[0] is None:
            cause = f"{size_name} is {size}, but {rank_name} does not set the rank of this process"
            raise LoaderError("E-MISUSE", cause, fix=_PLACE_FIX)
        found[launcher] = place
    if certain and len(set(found.values())) > 1:
        places = " and ".join(f"{rank} of {size} by {launcher}" for launcher, (rank, size) in found.items())
        raise LoaderError("E-MISUSE", f"this process is rank {places}", fix=_PLACE_FIX)
    return next(iter(found.values()), (None, None))


def _variable(name: str) -> int | None:
    """Return the number in an environment variable; None if it is unset or empty."""
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"the environment variable {name} is {text!r}, which is not a number") from None


def _srun_tasks() -> int:
    """Return the number of tasks in this process's srun step; 0 outside srun."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS") or os.environ.get("SLURM_NTASKS", "")
    return int(tasks) if "SLURM_PROCID" in os.environ and tasks.isdigit() else 0


def _warn_if_one_of_several() -> None:
    """Warn if this process serves all of the data although others may train together with it."""
    tasks = _srun_tasks()
    if tasks > 1:
        warn_user(
            f"SLURM runs {tasks} tasks, but this one has no rank, so it reads all of the data: if they train together, "
            "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS; if not, pass rank=0, world_size=1",
        )
    elif _group_size > 1:
        warn_user(
            f"torch.distributed with {_group_size} ranks has ended, so this process reads all of the data: if "
            "the other ranks continue, pass rank and world_size; if this process is alone, pass rank=0, world_size=1",
        )
