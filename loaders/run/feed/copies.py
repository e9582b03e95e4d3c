"""CopyEngine copies to a GPU: pinned memory, a side stream, events. Which devices there are."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import shown


def numbered(device: torch.device) -> torch.device:
    """Return `device` with the number of its GPU: "cuda" alone is another GPU whenever the process chooses one."""
    bare = device == torch.device("cuda")
    return torch.device("cuda", torch.cuda.current_device()) if bare else device


def usable_device(device: str | torch.device) -> torch.device:
    """Return `device`, a GPU with its number. Raises ValueError, LoaderError E-DEPENDENCY for one that is not there."""
    return numbered(checked_device(device))


def checked_device(device: str | torch.device) -> torch.device:
    """Return `device` as torch's. Raises ValueError, LoaderError E-DEPENDENCY for one that is not there."""
    try:
        named = torch.device(device)
    except (RuntimeError, TypeError) as error:
        fix = f"; perhaps {str(device).lower().replace('gpu', 'cuda')!r}" if "gpu" in str(device).lower() else ""
        reason = str(error).partition("(")[0].partition(" device type at start")[0]
        text = "device must be one of torch's, such as 'cpu' or 'cuda:0'"
        raise ValueError(f"{text}, got {shown(device)}{fix or f' ({reason})'}") from None
    if named.type in ("mps", "xpu") and not getattr(torch, named.type).is_available():
        raise LoaderError("E-DEPENDENCY", f"device '{named}': this torch cannot use it", fix="pass device='cpu'")
    count = torch.cuda.device_count() if named.type == "cuda" else 0
    if named.type == "cuda" and (named.index or 0) >= count:
        seen = f"{count} CUDA device{'s' * (count != 1)}" if count else "no CUDA device"
        fix = "see `nvidia-smi` and torch.version.cuda; a CPU build of torch has none. device='cpu' needs no GPU"
        raise LoaderError("E-DEPENDENCY", f"device '{named}': torch {torch.__version__} sees {seen}", fix=fix)
    return named


@cache
def side_stream(device: torch.device, purpose: str = "feed") -> torch.cuda.Stream:
    """Return this process's side stream of a device for a purpose, made once.

    torch keeps a pool of memory for each stream, so a new stream for each epoch would leave a pool behind. Work on it
    goes before that of the consumer's stream wherever both wait: it is short, and the step after it waits for it.
    """
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


def pinned_like(like: torch.Tensor) -> torch.Tensor:
    """Return page-locked host memory of the shape, strides and dtype of `like`, whose values it does not hold."""
    return torch.empty_like(like, device="cpu", pin_memory=True)  # whatever the default device


class CopyEngine:
    """Copy to one CUDA device on a stream of its own, not the one on which the consumer computes.

    purpose: as side_stream takes it.
    """

    def __init__(self, device: torch.device, purpose: str = "feed") -> None:
        self._device = numbered(device)
        self._stream = side_stream(self._device, purpose)

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        """Return memory as pinned_like."""
        return pinned_like(like)

    def side(self) -> AbstractContextManager[object]:
        """Return a context in which work is queued on the side stream."""
        return torch.cuda.stream(self._stream)

    def mark(self) -> torch.cuda.Event:
        """Return an event that happens after what is queued on the side stream now."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def mark_consumer(self) -> torch.cuda.Event:
        """Return an event that happens after what is queued on the consumer's stream now."""
        # Blocking: the host is to sleep in the wait for it, and not to take a CPU from the workers.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait_on_host(self, event: torch.cuda.Event) -> None:
        """Block the host until `event` has happened."""
        event.synchronize()

    def hand_over(self, event: torch.cuda.Event, tensors: tuple[torch.Tensor, ...]) -> None:
        """Make the consumer's stream wait for `event`, and keep `tensors` alive until it is done with them."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        for tensor in tensors:
            for part in _memory_of(tensor):
                if part.device == self._device:  # a PackedSequence keeps some on the host, which records no stream
                    part.record_stream(current)  # they were allocated on the side stream


def _memory_of(tensor: Any) -> tuple[torch.Tensor, ...]:
    """Return the plain tensors that hold the memory of `tensor`: those that a sparse or nested one is made of."""
    if tensor.is_nested:
        return (tensor.values(), tensor.offsets()) if tensor.layout is torch.jagged else (tensor.values(),)
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)
