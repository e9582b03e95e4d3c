"""TensorFeed sends batches of any nested structure to a device, one batch ahead, on a side stream."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from penstock.loaders.feed.copies import CopyEngine, CudaCopyEngine
from penstock.loaders.feed.host_lead import HostLead


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch in order, also those in nested tuples, named tuples, lists and mappings."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, (tuple, list)):
        for part in batch:
            yield from tensors_in(part)
    elif isinstance(batch, Mapping):
        yield from tensors_in(list(batch.values()))


def to_device(
    batch: Any, device: torch.device, lock: Callable[[torch.Tensor], torch.Tensor] = lambda part: part
) -> Any:
    """Return `batch` with its tensors on `device`, in containers of the same types; other objects stay as they are.

    lock: returns a tensor in page-locked memory, or as it is where it cannot lie there.
    """
    if isinstance(batch, torch.Tensor):
        return lock(batch).to(device, non_blocking=True)
    if isinstance(batch, PackedSequence):  # a named tuple that keeps some of its tensors on the host
        return batch.to(device, non_blocking=True)  # type: ignore[arg-type]
    if isinstance(batch, Mapping):
        moved = {key: to_device(part, device, lock) for key, part in batch.items()}
        if isinstance(batch, MutableMapping):  # a copy keeps what else the type carries, such as a default factory
            like = copy.copy(batch)
            like.update(moved)
            return like
        return type(batch)(moved)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(part, device, lock) for part in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)([to_device(part, device, lock) for part in batch])
    return batch


class TensorFeed:
    """Take host batches from `source` and hand them out in order on `device`, safe to use on the current stream.

    On CUDA the copy of the following batch is started, too, if `ready()` says that there is one; it is never waited
    for. Tensors in pageable memory go through page-locked memory: otherwise the host would wait for each copy. On other
    devices a batch is moved when it is asked for.
    An exception of `source` (StopIteration too) is raised in its place in the order.
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
        self._lead = None if self._copies is None else HostLead(self._copies)
        self._waiting: deque[tuple[Any, Any] | Exception] = deque()

    def next(self) -> Any:
        """Return the next batch; its tensors are no inference tensors, whatever mode the consumer is in."""
        with torch.inference_mode(False):  # what is sent ahead may be trained on
            return self._next()

    def _next(self) -> Any:
        if self._copies is None or self._lead is None:
            return to_device(self._source(), self._device)
        self._lead.wait()
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
        """Count the batches that can be had without waiting."""
        return len(self._waiting) + self._ready()

    def _fetch(self) -> None:
        assert self._copies is not None
        try:
            batch = self._source()
            with self._copies.side():
                self._waiting.append((to_device(batch, self._device, self._lock), self._copies.mark()))
        except Exception as error:
            self._waiting.append(error)

    def _lock(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a plain tensor in page-locked memory; others, whose parts torch moves, as they are."""
        assert self._copies is not None
        is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_nested
        if not is_plain or tensor.is_quantized or tensor.device.type != "cpu" or tensor.is_pinned():
            return tensor
        return self._copies.pinned(tensor).copy_(tensor)
