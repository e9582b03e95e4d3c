"""CopyEngine is the part of a feed that differs by device: pinned memory, a side stream, events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch


class CopyEngine(Protocol):
    """Copy to one device, beside the stream on which the consumer computes."""

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        """Return page-locked host memory of the shape and dtype of `like`."""
        ...

    def side(self) -> Any:
        """Return a context in which work is queued on the side stream."""
        ...

    def mark(self) -> Any:
        """Return an event that happens after what is queued on the side stream now."""
        ...

    def wait_on_host(self, event: Any) -> None:
        """Block the host until `event` has happened."""
        ...

    def hand_over(self, event: Any, tensors: tuple[torch.Tensor, ...]) -> None:
        """Make the consumer's stream wait for `event`, and keep `tensors` alive until it is done with them."""
        ...


class CudaCopyEngine:
    """Copy to a CUDA device; CopyEngine describes the methods."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    @contextmanager
    def side(self) -> Iterator[None]:
        with torch.cuda.stream(self._stream):
            yield

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def wait_on_host(self, event: torch.cuda.Event) -> None:
        event.synchronize()

    def hand_over(self, event: torch.cuda.Event, tensors: tuple[torch.Tensor, ...]) -> None:
        current = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(current)  # they were allocated on the side stream
