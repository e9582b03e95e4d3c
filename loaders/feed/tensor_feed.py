"""Batches of any nested shape on their way to a device: non_blocking copies on a side stream, one batch ahead."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from penstock.loaders.feed.copies import CopyEngine, CudaCopyEngine


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors of a batch in order: those in nested tuples, named tuples, lists and mappings."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, (tuple, list)):
        for part in batch:
            yield from tensors_in(part)
    elif isinstance(batch, Mapping):
        yield from tensors_in(list(batch.values()))


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on `device` and containers of the same types; other objects stay as they are."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, PackedSequence):  # a named tuple that keeps some of its tensors on the host
        return batch.to(device, non_blocking=True)  # type: ignore[arg-type]
    if isinstance(batch, Mapping):
        moved = {key: to_device(part, device) for key, part in batch.items()}
        if isinstance(batch, MutableMapping):  # a copy keeps what else the type carries, a default factory for one
            like = copy.copy(batch)
            like.update(moved)
            return like
        return type(batch)(moved)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(part, device) for part in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)([to_device(part, device) for part in batch])
    return batch


class TensorFeed:
    """Takes host batches from `source`, hands them out in order on `device`, safe to use on the current stream.

    On CUDA it starts the copy of the batch after the one it hands out if `ready()` says that there is one; it never
    waits for it. Copies overlap computation where the batches are pinned. Elsewhere a batch is moved when it is asked
    for. An exception of `source` (StopIteration too) is raised in its place in the order.
    """

    def __init__(
        self,
        source: Callable[[], Any],
        ready: Callable[[], int],
        device: torch.device,
        *,
        copies: CopyEngine | None = None,
    ) -> None:
        self._source, self._ready, self._device = source, ready, device
        self._copies = CudaCopyEngine(device) if copies is None and device.type == "cuda" else copies
        self._waiting: deque[tuple[Any, Any] | Exception] = deque()

    def next(self) -> Any:
        """The next batch."""
        if self._copies is None:
            return to_device(self._source(), self._device)
        if not self._waiting:
            self._fetch()
        if not isinstance(self._waiting[-1], Exception) and self._ready():
            self._fetch()
        first = self._waiting.popleft()
        if isinstance(first, Exception):
            raise first
        batch, event = first
        self._copies.hand_over(event, tuple(tensors_in(batch)))
        return batch

    def ready(self) -> int:
        """Batches that can be had without waiting."""
        return len(self._waiting) + self._ready()

    def _fetch(self) -> None:
        assert self._copies is not None
        try:
            batch = self._source()
            with self._copies.side():
                self._waiting.append((to_device(batch, self._device), self._copies.mark()))
        except Exception as error:
            self._waiting.append(error)
