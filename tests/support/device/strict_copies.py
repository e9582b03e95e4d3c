"""StrictCopies is a CopyEngine on torch's meta device: it refuses everything that would be an error on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")


class StrictCopies(TorchDispatchMode):
    """Assert, for each operation and hand-over, that devices and streams are correct.

    Pixels (four dimensions) reach the device only from pinned memory, and are made there only inside `side()`. Tensors
    that are handed over were made inside it. Events are recorded inside, and waited for outside. The host reads nothing
    back: the meta device has no values.

    Attributes:
        marks: events recorded so far.
        waited: events that the host waited for, in order.
        uploaded: bytes from pinned memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pinned: list[StorageWeakRef] = []
        self._made: list[StorageWeakRef] = []
        self._inside = False
        self.marks, self.uploaded = 0, 0
        self.waited: list[int] = []
        self.handed_over: list[int] = []

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        assert like.device.type == "cpu", "only host memory is pinned"
        assert not torch.is_inference_mode_enabled(), "pinned memory is reused outside inference mode"
        memory = torch.zeros_like(like)
        return self.lock(memory)

    def lock(self, memory: torch.Tensor) -> torch.Tensor:
        """Count existing memory as pinned."""
        self._pinned.append(StorageWeakRef(memory.untyped_storage()))
        return memory

    @contextmanager
    def side(self) -> Iterator[None]:
        assert not self._inside
        assert not torch.is_inference_mode_enabled(), "tensors sent ahead may be used for training"
        self._inside = True
        try:
            with self:
                yield
        finally:
            self._inside = False

    def mark(self) -> int:
        assert self._inside, "an event of the consumer's stream does not cover the side stream"
        self.marks += 1
        return self.marks

    def mark_consumer(self) -> None:
        assert not self._inside, "an event of the side stream does not cover the consumer's steps"

    def wait_on_host(self, event: int | None) -> None:
        assert not self._inside
        if event is None:  # a step has no slot
            return
        assert event not in self.waited
        self.waited.append(event)

    def hand_over(self, event: int, tensors: tuple[torch.Tensor, ...]) -> None:
        assert not self._inside
        for tensor in tensors:
            assert tensor.is_meta, f"handed over on {tensor.device}"
            assert not tensor.is_inference()
            assert self._among(tensor, self._made), "handed over a tensor that was not made on the side stream"
        self.handed_over.append(event)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        for tensor in tree_leaves(result):
            if not isinstance(tensor, torch.Tensor):
                continue
            source = next((t for t in given if _is_pixels(t) and not t.is_meta), None)
            if tensor.is_meta and source is not None:
                assert not source.numel() or self._among(source, self._pinned), f"{func} uploads from pageable memory"
                self.uploaded += source.nbytes
            assert tensor.is_meta or not _is_pixels(tensor) or not len(tensor), f"{func} makes pixels on the host"
            if not any(tensor.untyped_storage()._cdata == t.untyped_storage()._cdata for t in given):
                self._made.append(StorageWeakRef(tensor.untyped_storage()))
        return result

    @staticmethod
    def _among(tensor: torch.Tensor, known: list[StorageWeakRef]) -> bool:
        found = StorageWeakRef(tensor.untyped_storage())
        return any(each.cdata == found.cdata and not each.expired() for each in known)


def _is_pixels(tensor: torch.Tensor) -> bool:
    return tensor.ndim == 4 and tensor.dtype != torch.int32  # coordinates are int32
