"""Page-locks memory for CUDA, so that a GPU copies out of it by itself, until the last view of it is gone."""

from __future__ import annotations

import contextlib
import os
import warnings
import weakref
from typing import Any

import numpy.typing as npt
import torch

_PORTABLE = 1  # cudaHostRegisterPortable: every device of this process may read it


def page_lock(memory: npt.NDArray[Any], device: str) -> bool:
    """Page-lock `memory` for `device`; return whether that could be done, and warn where it could not.

    Its pages must be its own and shared (SharedArray's are): of private ones, a process that writes to them after a
    fork would get copies that the device does not know.
    """
    try:
        with torch.cuda.device(device):  # no context on another GPU
            cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            status = int(cudart.cudaHostRegister(memory.ctypes.data, memory.nbytes, _PORTABLE))
            why = f"CUDA error {status}" if status else ""
            if status:  # CUDA reports it once more, to the next kernel that is started: let that be none of the user's
                with contextlib.suppress(RuntimeError):
                    torch.ones(1, device=device)
    except (RuntimeError, AssertionError) as error:  # a torch without CUDA, a forked process
        why = str(error)
    if why:
        text = f"batch slots cannot be page-locked ({why}): each batch is copied once more on the host"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return False
    # By then no copy out of it is under way: whoever starts one holds a view until it is done.
    weakref.finalize(memory, _unlock, memory.ctypes.data, os.getpid()).atexit = False
    return True


def _unlock(address: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked child has no CUDA, and the parent goes on
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
