"""Page-locks memory for CUDA until its last view is gone, so that a GPU can copy out of it directly."""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any

import numpy.typing as npt
import torch

from penstock.pipelines.messages.user_warnings import warn_user

_PORTABLE = 1  # cudaHostRegisterPortable: every device of this process may read it


def page_lock(memory: npt.NDArray[Any], device: str) -> bool:
    """Page-lock `memory` for `device`; return whether that worked, and warn if not.

    Its pages must be shared, and used for nothing else, as SharedArray's are. After a fork, a process that writes to
    private pages would get copies that the device does not know.
    """
    try:
        with torch.cuda.device(device):  # no context on another GPU
            cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            status = int(cudart.cudaHostRegister(memory.ctypes.data, memory.nbytes, _PORTABLE))
            why = f"CUDA error {status}" if status else ""
            if status:  # CUDA reports it again at the next kernel: run one here, so that it is not the user's
                with contextlib.suppress(RuntimeError):
                    torch.ones(1, dtype=torch.uint8, device=device)
    except (RuntimeError, AssertionError) as error:  # a torch without CUDA, a forked process
        why = str(error)
    if why:
        text = f"batch slots cannot be page-locked ({why}): each batch is copied once more on the host"
        warn_user(text, RuntimeWarning)
        return False
    # No copy out of it is running by then: each copy holds a view until it is done.
    weakref.finalize(memory, _unlock, memory.ctypes.data, device, os.getpid()).atexit = False
    return True


def _unlock(address: int, device: str, owner: int) -> None:
    if os.getpid() != owner:  # a forked child has no CUDA, and the parent goes on
        return
    with torch.cuda.device(device):  # no context on another GPU: the last view may go in any thread
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
