"""Copies small arrays from the host to the batch's device without waiting for the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return `array` as a tensor on `device`; the copy is queued on the current stream.

    On a CPU the tensor shares the array's memory. A copy to a CUDA device goes through torch's pool of page-locked
    memory, which torch does not reuse before the copy is complete.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
