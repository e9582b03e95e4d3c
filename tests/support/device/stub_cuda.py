"""Stand-ins for torch's CUDA streams, events and memory counters, which only record calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from penstock.loaders.run.feed import copies

_empty_like = torch.empty_like


class StubCuda:
    """Record, in `log`, the calls for a machine with two GPUs, on which the process has selected the second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.streams: list[Stream] = []
        self.now = self._default = Stream(self, "cuda:1", 0)
        self.streams.clear()
        monkeypatch.setattr(torch.cuda, "Stream", lambda device=None, priority=0: Stream(self, device, priority))
        monkeypatch.setattr(torch.cuda, "Event", lambda **options: Event(self, **options))
        monkeypatch.setattr(torch.cuda, "stream", self._stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: self.now)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: self._record(tensor, stream))  # noqa: PLW0108  bound to it
        monkeypatch.setattr(torch, "empty_like", self._pinned_or_not)
        copies.side_stream.cache_clear()

    def end(self) -> None:
        """Forget the streams that were made."""
        copies.side_stream.cache_clear()

    @contextmanager
    def _stream(self, stream: Stream) -> Iterator[None]:
        before, self.now = self.now, stream
        yield
        self.now = before

    def _record(self, tensor: torch.Tensor, stream: Stream) -> None:
        if tensor.device.type == "cpu" or tensor.layout is not torch.strided:
            raise NotImplementedError(f"record_stream of a {tensor.layout} tensor on {tensor.device}")
        self.log.append(("record", tuple(tensor.shape), stream))

    def _pinned_or_not(self, like: torch.Tensor, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        memory = _empty_like(like, **options)
        if pin_memory and memory.device.type != "cpu":
            raise RuntimeError("only dense CPU tensors can be pinned")
        return memory


class StubCudart:
    """The part of the CUDA runtime that page-locks memory: notes locked memory; a `status` other than 0 refuses.

    Attributes:
        locked: address -> bytes.
        kernels: number of kernels started to clear a refusal.
        current: the device of the thread as in CUDA: the first one unless another is selected.
    """

    current = "cuda:0"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: int = 0) -> None:
        self.locked: dict[int, int] = {}
        self.locked_on: dict[int, str] = {}
        self.status, self.kernels = status, 0
        monkeypatch.setattr(torch.cuda, "cudart", lambda: self)
        monkeypatch.setattr(torch.cuda, "device", self._device)
        monkeypatch.setattr(torch, "ones", self._kernel)

    @contextmanager
    def _device(self, device: str) -> Iterator[None]:
        before, self.current = self.current, device
        yield
        self.current = before

    def _kernel(self, *_: Any, **__: Any) -> None:
        self.kernels += 1
        raise RuntimeError("CUDA error: from the call before")

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:
        assert (address % 4096, flags) == (0, 1), "the pages must be its own, and valid for every device"
        if not self.status:
            self.locked[address], self.locked_on[address] = num_bytes, self.current
        return self.status

    def cudaHostUnregister(self, address: int) -> int:
        assert self.current == self.locked_on[address], "this would create a context on another GPU"
        del self.locked[address]
        return 0

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether all of a tensor is page-locked."""
        start = tensor.data_ptr()
        return any(at <= start and start + tensor.nbytes <= at + size for at, size in self.locked.items())


class Stream:
    def __init__(self, cuda: StubCuda, device: Any, priority: int) -> None:
        self.cuda, self.device, self.priority = cuda, device, priority
        cuda.streams.append(self)

    def wait_event(self, event: Event) -> None:
        self.cuda.log.append(("wait", self, event))


class Event:
    def __init__(self, cuda: StubCuda, *, blocking: bool = False) -> None:
        self.cuda, self.blocking = cuda, blocking

    def record(self, stream: Stream) -> None:
        self.cuda.log.append(("event", stream, self))

    def synchronize(self) -> None:
        self.cuda.log.append(("synchronize", self))
