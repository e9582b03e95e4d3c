"""TensorFeed: sends batches of any nested structure to a device, ahead of their use, on a side stream."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Generic, TypeVar

import torch
from torch.nn.utils.rnn import PackedSequence

from penstock.loaders.run.feed.copies import CopyEngine

Taken = TypeVar("Taken")  # a batch of the source
Sent = TypeVar("Sent")  # the same on the device
MOST_STEPS = 4  # a host pause shorter than this many steps does not leave a gap on the device


def tensors_in(batch: object) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch in order, also those in nested tuples, named tuples, lists and mappings."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, (tuple, list)):
        for part in batch:
            yield from tensors_in(part)
    elif isinstance(batch, Mapping):
        yield from tensors_in(list(batch.values()))


def map_tensors(batch: object, change: Callable[[Any], object]) -> Any:
    """Return `batch` with `change` applied to each tensor, in containers of the same types; other objects unchanged.

    A PackedSequence, a named tuple that keeps some of its tensors on the host, is passed to `change` as a whole.
    """
    if isinstance(batch, (torch.Tensor, PackedSequence)):
        return change(batch)
    if isinstance(batch, Mapping):
        moved = {key: map_tensors(part, change) for key, part in batch.items()}
        if isinstance(batch, MutableMapping):  # a copy keeps other state of the type, such as a default factory
            like = copy.copy(batch)
            like.update(moved)
            return like
        return type(batch)(moved)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(part, change) for part in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)([map_tensors(part, change) for part in batch])
    return batch


def to_device(batch: object, device: torch.device) -> Any:
    """Return `batch` with its tensors on `device`; a copy out of page-locked memory does not block the host."""
    return map_tensors(batch, lambda part: part.to(device, non_blocking=True))


def lock_tensors(batch: object, pinned: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return `batch` with its plain tensors in page-locked memory. Others are unchanged, as torch moves their parts.

    pinned: returns page-locked memory with the shape and dtype of a tensor.
    """

    def lock(tensor: torch.Tensor) -> torch.Tensor:
        is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_nested
        if not is_plain or tensor.is_quantized or tensor.device.type != "cpu" or tensor.is_pinned():
            return tensor
        return pinned(tensor).copy_(tensor)

    return map_tensors(batch, lock)


class TensorFeed(Generic[Taken, Sent]):
    """Take host batches from `source` and return them in order on `device`, safe to use on the current stream.

    On CUDA the copies of up to `ahead` following batches are also started while `ready()` is above 0. The feed never
    waits for a batch before it is requested. Tensors in pageable memory are copied through page-locked memory:
    otherwise the host would wait for each copy. The host is at most MOST_STEPS steps ahead of the device: a step that
    is captured in a CUDA graph is one launch, and without a limit the device would keep a batch for each of tens of
    queued steps. On other devices a batch is moved when it is requested.
    An exception of `source` (including StopIteration) is raised in its place in the order, after the batches before it.

    Attributes:
        device: the device of the batches.
    """

    def __init__(
        self,
        source: Callable[[], Taken],
        ready: Callable[[], int],
        device: torch.device,
        *,
        ahead: int = 1,
        copies: CopyEngine | None = None,
    ) -> None:
        self._source, self._ready, self.device, self._ahead = source, ready, device, ahead
        self._copies = CopyEngine(device) if copies is None and device.type == "cuda" else copies
        self._waiting: deque[tuple[Sent, torch.cuda.Event] | Exception] = deque()
        self._steps: deque[torch.cuda.Event] = deque()  # ends of the consumer's steps that may still run on the device

    def next(self) -> Sent:
        """Return the next batch, safe to use on the current stream.

        Its tensors, and the memory behind them, are never inference tensors, even if the consumer is in that mode.
        """
        with torch.inference_mode(False):  # batches sent ahead may be used for training, and their memory is reused
            batch = self._on_host(self._source()) if self._copies is None else self._take(self._copies)
            return self._finish_for_consumer(batch)

    def _finish_for_consumer(self, batch: Sent) -> Sent:
        """Return `batch` after work that must not be done ahead of the consumer; the stream is the consumer's."""
        return batch

    def _on_host(self, batch: Taken) -> Sent:
        """Return a batch on a device that does not support sending ahead."""
        sent: Sent = to_device(batch, self.device)
        return sent

    def _take(self, copies: CopyEngine) -> Sent:
        self._steps.append(copies.mark_consumer())
        if len(self._steps) > MOST_STEPS:
            copies.wait_on_host(self._steps.popleft())
        if not self._waiting:
            self._fetch(copies)
        while len(self._waiting) <= self._ahead and not isinstance(self._waiting[-1], Exception) and self._ready():
            self._fetch(copies)
        first = self._waiting.popleft()
        if isinstance(first, Exception):
            raise first
        batch, event = first
        copies.hand_over(event, tuple(tensors_in(batch)))
        return batch

    def ready(self) -> int:
        """Return the number of batches that are available without waiting."""
        return len(self._waiting) + self._ready()

    def _fetch(self, copies: CopyEngine) -> None:
        try:
            self._make_room()
            self._waiting.append(self._send(self._source(), copies))
        except Exception as error:
            self._waiting.append(error)

    def _make_room(self) -> None:
        """Prepare for another batch before it is taken from the source."""

    def _send(self, batch: Taken, copies: CopyEngine) -> tuple[Sent, torch.cuda.Event]:
        """Start the copies of a batch; return it on the device, and an event that occurs after them."""
        locked = lock_tensors(batch, copies.pinned)
        with copies.side():
            return to_device(locked, self.device), copies.mark()
