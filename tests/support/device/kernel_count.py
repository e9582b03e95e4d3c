"""KernelCount counts the kernels that operations launch on a device, and the bytes that they read and write."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_ALLOCATE = {"empty", "empty_strided", "empty_like", "new_empty", "_unsafe_view", "_reshape_alias", "lift_fresh"}
_SELECT = ("index_select", "gather")  # they read as many values of their table as they write


class KernelCount(TorchDispatchMode):
    """Count every operation that is not a view as one kernel (also copies to the device), on the meta device or a CPU.

    Bytes are those of values read and written; values repeated by expansion count once, and tables of a selection once
    per read.

    Attributes:
        kernels: by name of the operation.
        bytes: by name of the operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.is_view or name in _ALLOCATE:
            return result
        written = sum(_bytes(part) for part in tree_leaves(result) if isinstance(part, torch.Tensor))
        read = 0
        for place, argument in enumerate(func._schema.arguments):
            given = args[place] if place < len(args) else (kwargs or {}).get(argument.name)
            if argument.is_out or (place == 0 and name in ("copy_", "fill_", "zero_", "index_copy_")):
                continue
            size = sum(_bytes(part) for part in tree_leaves(given) if isinstance(part, torch.Tensor))
            read += min(size, written) if place == 0 and name in _SELECT else size
        self.kernels[name] += 1
        self.bytes[name] += read + (_bytes(args[3]) if name == "index_copy_" else written)
        return result

    @property
    def num_kernels(self) -> int:
        return sum(self.kernels.values())

    @property
    def num_bytes(self) -> int:
        return sum(self.bytes.values())


def _bytes(tensor: torch.Tensor) -> int:
    values = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        values *= length if stride else 1
    return values * tensor.element_size()
