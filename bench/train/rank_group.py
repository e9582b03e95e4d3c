"""Joins the ranks of torchrun for a command, and gathers values from them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from penstock.loaders.order.ranks import is_joined
from penstock.pipelines.errors import LoaderError

_LOST = ("gloo", "NCCL", "c10d", "Connection", "Timed out", "timed out", "Socket")  # in errors about a lost rank


@contextmanager
def join_process_group(device: str, timeout_s: float | None = None) -> Iterator[str]:
    """Join torch.distributed if torchrun's variables are set; yield this rank's device, for "cuda" its own GPU.

    Uses NCCL between GPUs, gloo between processors. Ranks wait for each other for at most `timeout_s`, by default
    torch's timeout. Raises LoaderError E-WORKER if another rank has ended or does not answer in time.
    """
    if not os.environ.get("WORLD_SIZE") or not os.environ.get("RANK") or not dist.is_available() or is_joined():
        yield device
        return
    if device == "cuda":
        device = f"cuda:{int(os.environ.get('LOCAL_RANK', '0'))}"
        torch.cuda.set_device(device)
    with _lost_ranks_as_loader_errors():
        timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo", timeout=timeout)
        try:
            yield device
        finally:
            dist.destroy_process_group()


@contextmanager
def _lost_ranks_as_loader_errors() -> Iterator[None]:
    """Turn torch's errors about a lost rank, which are tracebacks of gloo or NCCL, into one line."""
    try:
        yield
    except LoaderError:
        raise
    except RuntimeError as error:
        text = str(error).strip()
        if not isinstance(error, dist.DistError) and not any(word in text for word in _LOST):
            raise
        cause = f"another rank has ended or does not answer ({text.splitlines()[0] if text else type(error).__name__})"
        fix = "see the first errors of the other ranks; if they are only slow, raise --rank-timeout"
        raise LoaderError("E-WORKER", cause, fix=fix, rank=int(os.environ["RANK"])) from error


def gather_from_ranks(value: Any, device: str = "cpu") -> list[Any]:
    """Return the JSON-serialisable `value` of all ranks in order; `[value]` without other ranks."""
    if not is_joined():
        return [value]
    text = torch.tensor(list(json.dumps(value, default=str).encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(text)], device=device))
    lengths = [int(size.item()) for size in sizes]
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=device)
    padded[: len(text)] = text
    texts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(texts, padded)
    return [json.loads(bytes(part[:size].tolist())) for part, size in zip(texts, lengths, strict=True)]


def is_first_rank() -> bool:
    """Return whether this process is rank 0 or the only one: only that prints and writes files."""
    return not is_joined() or dist.get_rank() == 0
