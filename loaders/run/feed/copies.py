"""CopyEngine: copies to a GPU with pinned memory, a side stream and events. Checks of devices."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import shown


def numbered(device: torch.device) -> torch.device:
    """Return `device` with the number of its GPU, because "cuda" alone means the process's current GPU."""
    bare = device == torch.device("cuda")
    return torch.device("cuda", torch.cuda.current_device()) if bare else device


def usable_device(device: str | torch.device) -> torch.device:
    """Return `device`, a GPU with its number. Raises ValueError, LoaderError E-DEPENDENCY for a missing device."""
    return numbered(checked_device(device))


def checked_device(device: str | torch.device) -> torch.device:
    """Return `device` as a torch.device. Raises ValueError, LoaderError E-DEPENDENCY for a missing device."""
    try:
        named = torch.device(device)
    except (RuntimeError, TypeError) as error:
        fix = f"; perhaps {str(device).lower().replace('gpu', 'cuda')!r}" if "gpu" in str(device).lower() else ""
        reason = str(error).partition("(")[0].partition(" device type at start")[0]
        text = "device must be a torch device, such as 'cpu' or 'cuda:0'"
        raise ValueError(f"{text}, got {shown(device)}{fix or f' ({reason})'}") from None
    if named.type in ("mps", "xpu") and not getattr(torch, named.type).is_available():
        raise LoaderError("E-DEPENDENCY", f"device '{named}': this torch cannot use it", fix="pass device='cpu'")
    count = torch.cuda.device_count() if named.type == "cuda" else 0
    if named.type == "cuda" and (named.index or 0) >= count:
        seen = f"{count} CUDA device{'s' * (count != 1)}" if count else "no CUDA device"
        fix = "check `nvidia-smi` and torch.version.cuda (None in a CPU build of torch), or pass device='cpu'"
        raise LoaderError("E-DEPENDENCY", f"device '{named}': torch {torch.__version__} sees {seen}", fix=fix)
    return named


@cache
def side_stream(device: torch.device, purpose: str = "feed") -> torch.cuda.Stream:
    """Return this process's side stream of a device for a purpose; it is created once.

    torch keeps a memory pool for each stream, so a new stream per epoch would leave pools behind. Its work has priority
    over that of the consumer's stream, because it is short and the next step waits for it.
    """
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


def pinned_like(like: torch.Tensor) -> torch.Tensor:
    """Return uninitialised page-locked host memory with the shape, strides and dtype of `like`."""
    return torch.empty_like(like, device="cpu", pin_memory=True)  # independent of the default device


class CopyEngine:
    """Copies to one CUDA device on a separate stream, not on the consumer's stream.

    purpose: as in side_stream.
    """

    def __init__(self, device: torch.device, purpose: str = "feed") -> None:
        self._device = numbered(device)
        self._stream = side_stream(self._device, purpose)

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        """Return memory from pinned_like."""
        return pinned_like(like)

    def side(self) -> AbstractContextManager[object]:
        """Return a context in which work is queued on the side stream."""
        return torch.cuda.stream(self._stream)

    def mark(self) -> torch.cuda.Event:
        """Return an event that occurs after all work that is now queued on the side stream."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def mark_consumer(self) -> torch.cuda.Event:
        """Return an event that occurs after all work that is now queued on the consumer's stream."""
        # Blocking: the host must sleep while waiting for it, and not use a CPU that the workers need.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait_on_host(self, event: torch.cuda.Event) -> None:
        """Block the host until `event` has occurred."""
        event.synchronize()

    def hand_over(self, event: torch.cuda.Event, tensors: tuple[torch.Tensor, ...]) -> None:
        """Make the consumer's stream wait for `event`, and keep `tensors` alive until the stream has used them."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        for tensor in tensors:
            for part in _memory_of(tensor):
                if part.device == self._device:  # a PackedSequence keeps some on the host, without streams
                    part.record_stream(current)  # they were allocated on the side stream


def _memory_of(tensor: Any) -> tuple[torch.Tensor, ...]:
    """Return the plain tensors with the memory of `tensor`: the components of a sparse or nested tensor."""
    if tensor.is_nested:
        return (tensor.values(), tensor.offsets()) if tensor.layout is torch.jagged else (tensor.values(),)
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)
