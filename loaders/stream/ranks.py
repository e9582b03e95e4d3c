"""Finds this process's rank and the world size, and compares what the ranks of a run are about to serve."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from penstock.pipelines.errors import LoaderError

_SHOWN = 40  # characters of a value that an error still shows
_PLACE_FIX = (
    "set RANK and WORLD_SIZE, start torch.distributed before the first batch, or pass rank and world_size; "
    "a process on its own unsets them"
)


def joined() -> bool:
    """Say whether torch.distributed is initialised."""
    return dist.is_available() and dist.is_initialized()


def distributed_place(
    rank: int | None = None, world_size: int | None = None, *, certain: bool = True
) -> tuple[int, int]:
    """Return (rank, world size): as given, else of torch.distributed, else of its environment variables, else (0, 1).

    A launcher may set WORLD_SIZE alone and leave the rank to a process group that comes up later: until then
    `certain=False` takes the rank for 0. Raises ValueError if only one of the two is given or a variable is no number,
    LoaderError E-MISUSE for a variable without the other.
    """
    if (rank is None) != (world_size is None):
        raise ValueError("give both rank and world_size, or neither")
    if rank is not None and world_size is not None:
        return rank, world_size
    if joined():
        return dist.get_rank(), dist.get_world_size()
    rank, world_size = _variable("RANK"), _variable("WORLD_SIZE")
    if certain and (world_size or 1) > 1 and rank is None:
        raise LoaderError(
            "E-MISUSE", f"WORLD_SIZE is {world_size}, and nothing says which rank this is", fix=_PLACE_FIX
        )
    if certain and (rank or 0) > 0 and world_size is None:
        raise LoaderError("E-MISUSE", f"RANK is {rank}, and nothing says of how many", fix=_PLACE_FIX)
    if certain and rank is None:
        _warn_of_slurm_tasks()
    return (0 if world_size is None else rank or 0), world_size or 1


def _variable(name: str) -> int | None:
    """Return the number in an environment variable; None where it is unset or empty."""
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"the environment variable {name} is {text!r}, which is no number") from None


def _warn_of_slurm_tasks() -> None:
    """Warn where srun runs several tasks that do not know their ranks: they may be ranks, or not."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS") or os.environ.get("SLURM_NTASKS", "")
    if "SLURM_PROCID" in os.environ and tasks.isdigit() and int(tasks) > 1:
        warnings.warn(
            f"SLURM runs {tasks} tasks, and this one is no rank, so it takes all of the data: if they train together, "
            "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS; if not, pass rank=0, world_size=1",
            stacklevel=2,
        )


def ensure_agreement(loader: str, about: Mapping[str, Any]) -> None:
    """Compare `about` with what the first rank to come here has said of its loader of that name.

    Both say it in the store of torch.distributed, and nobody waits: of two ranks that differ the later one raises
    LoaderError E-STATE, which names both. Without torch.distributed nothing is compared.
    """
    if not joined() or dist.get_world_size() == 1:
        return
    mine = json.dumps([dist.get_rank(), about])
    try:
        store = getattr(dist.distributed_c10d, "_get_default_store")()  # noqa: B009
        first = store.compare_set(f"penstock/loader/{loader}", "", mine)
    except (RuntimeError, AttributeError):  # no store, one without such an operation, or gone with its rank
        return
    refuse_disagreement(dict(map(json.loads, (first, mine))))


def refuse_disagreement(abouts: Mapping[int, Mapping[str, Any]]) -> None:
    """Raise LoaderError E-STATE where ranks (rank -> name -> value) differ from the first of them, naming all."""
    (first, expected), *others = abouts.items()
    differing = [rank for rank, about in others if about != expected]
    if not differing:
        return
    found = _differences([expected, *(abouts[rank] for rank in differing)])
    plural = "s" * (len(differing) > 1)
    raise LoaderError(
        "E-STATE",
        f"rank{plural} {', '.join(map(str, differing))} and rank {first} would not train on the same: "
        f"they differ in {', '.join(found)}",
        fix="give all ranks the same data and settings; a loader that is one rank's alone takes rank=0, world_size=1",
        rank=dist.get_rank(),
    )


def _differences(abouts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name what is not the same everywhere, with the values where they are short."""
    found = []
    for name in dict.fromkeys(name for about in abouts for name in about):
        values = [about.get(name) for about in abouts]
        if any(value != values[0] for value in values):
            shown = " and ".join(dict.fromkeys(map(repr, values)))
            found.append(f"{name} ({shown})" if len(shown) <= 2 * _SHOWN else name)
    return found
