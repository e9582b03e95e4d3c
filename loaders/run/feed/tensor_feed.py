"""TensorFeed sends batches of any nested structure to a device, ahead of their use, on a side stream."""

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
MOST_STEPS = 4  # a pause of the host shorter than these steps leaves no gap on the device


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
    """Return `batch` with each tensor as `change` returns it, in containers of the same types; other objects unchanged.

    A PackedSequence, a named tuple that keeps some of its tensors on the host, is given to `change` as a whole.
    """
    if isinstance(batch, (torch.Tensor, PackedSequence)):
        return change(batch)
    if isinstance(batch, Mapping):
        moved = {key: map_tensors(part, change) for key, part in batch.items()}
        if isinstance(batch, MutableMapping):  # a copy keeps what else the type carries, such as a default factory
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
    """Return `batch` with its plain tensors in page-locked memory; others, whose parts torch moves, as they are.

    pinned: returns such memory for values like those of a tensor.
    """

    def lock(tensor: torch.Tensor) -> torch.Tensor:
        is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_nested
        if not is_plain or tensor.is_quantized or tensor.device.type != "cpu" or tensor.is_pinned():
            return tensor
        return pinned(tensor).copy_(tensor)

    return map_tensors(batch, lock)


class TensorFeed(Generic[Taken, Sent]):
    """Take host batches from `source` and hand them out in order on `device`, safe to use on the current stream.

    On CUDA the copies of up to `ahead` following batches are started, too, while `ready()` says that there is one: none
    is waited for before it is asked for. Tensors in pageable memory go through page-locked memory: otherwise the host
    would wait for each copy. The host is at most MOST_STEPS steps ahead of the device: a step that is captured in a
    CUDA graph is one launch, and without a bound the device would hold a batch for each of tens that are queued. On
    other devices a batch is moved when it is asked for.
    An exception of `source` (StopIteration too) is raised in its place in the order, after the batches before it.

    Attributes:
        device: where the batches go.
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
        self._steps: deque[torch.cuda.Event] = deque()  # ends of the consumer's steps that the device may not have done

    def next(self) -> Sent:
        """Return the next batch, safe to use on the current stream.

        Its tensors are no inference tensors, and neither is the memory behind them, whatever mode the consumer is in.
        """
        with torch.inference_mode(False):  # what is sent ahead may be trained on, and its memory is filled again
            batch = self._on_host(self._source()) if self._copies is None else self._take(self._copies)
            return self._finish_for_consumer(batch)

    def _finish_for_consumer(self, batch: Sent) -> Sent:
        """Do what is not to be done ahead of the consumer; the current stream is the consumer's."""
        return batch

    def _on_host(self, batch: Taken) -> Sent:
        """Return a batch that is used where nothing can be sent ahead."""
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
        """Count the batches that can be had without waiting."""
        return len(self._waiting) + self._ready()

    def _fetch(self, copies: CopyEngine) -> None:
        try:
            self._make_room()
            self._waiting.append(self._send(self._source(), copies))
        except Exception as error:
            self._waiting.append(error)

    def _make_room(self) -> None:
        """Prepare for another batch, before the source is asked for it."""

    def _send(self, batch: Taken, copies: CopyEngine) -> tuple[Sent, torch.cuda.Event]:
        """Start the copies of a batch; return it on the device, and an event that happens after them."""
        locked = lock_tensors(batch, copies.pinned)
        with copies.side():
            return to_device(locked, self.device), copies.mark()
