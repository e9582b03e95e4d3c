"""Small arrays of the host on the batch's device, without waiting for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """`array` as a tensor on `device`, queued on the current stream.

    On a CPU it shares the array's memory. To a CUDA device it goes by way of page-locked memory of torch's own pool,
    which is not used again before the copy has happened.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
