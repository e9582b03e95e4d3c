"""CopyEngine is the device-specific part of a feed: pinned memory, a side stream, events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch


class CopyEngine(Protocol):
    """The device-specific part of a feed: pinned memory, a side stream, events."""

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        """Page-locked host memory of the shape and dtype of `like`."""
        ...

    def side(self) -> Any:
        """A context in which work is queued beside the consumer's stream."""
        ...

    def mark(self) -> Any:
        """An event after what is queued on the side stream now."""
        ...

    def wait_on_host(self, event: Any) -> None:
        """Block the host until `event` has happened."""
        ...

    def hand_over(self, event: Any, tensors: tuple[torch.Tensor, ...]) -> None:
        """Make the consumer's stream wait for `event`, and keep `tensors` alive until it is done with them."""
        ...


class CudaCopyEngine:
    """CopyEngine on a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        """See CopyEngine."""
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    @contextmanager
    def side(self) -> Iterator[None]:
        """See CopyEngine."""
        with torch.cuda.stream(self._stream):
            yield

    def mark(self) -> torch.cuda.Event:
        """See CopyEngine."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def wait_on_host(self, event: torch.cuda.Event) -> None:
        """See CopyEngine."""
        event.synchronize()

    def hand_over(self, event: torch.cuda.Event, tensors: tuple[torch.Tensor, ...]) -> None:
        """See CopyEngine."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(current)  # they were allocated on the side stream
