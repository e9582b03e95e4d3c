"""Joins the ranks that torchrun started, for a command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist


@contextmanager
def join_process_group(device: str) -> Iterator[str]:
    """Join torch.distributed where torchrun's variables ask for it; yield this rank's device, "cuda" being its own GPU.

    NCCL between GPUs, gloo between processors. Without those variables it does nothing.
    """
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ or not dist.is_available() or dist.is_initialized():
        yield device
        return
    if device == "cuda":
        device = f"cuda:{int(os.environ.get('LOCAL_RANK', '0'))}"
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()


def is_first_rank() -> bool:
    """Tell whether this process is rank 0, or the only one: it alone prints and writes files."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
