"""The state of a user's function: a digest of all that its calls may change."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import pickle
import random
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.pipelines.function_names import set_by_call

# Draws of a function's own generator are reported elsewhere, and threads may share it.
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator, torch.Generator)
_CHANGED_IN_PLACE = (np.ndarray, torch.Tensor, list, dict, set, bytearray)
_CALLS = ("__call__", "forward")  # methods whose global values count
_PROTOCOL = 5
_LARGE, _MOST_BYTES = 1 << 26, 1 << 28  # of an array; of all that is digested


class State(NamedTuple):
    """The state of a function.

    Attributes:
        digest: of its content: attributes, captured and global values, arrays, and the collections and arrays in
            attributes of classes. Large arrays, random generators, tensors that are trained, and what cannot be
            pickled, such as locks, count by their kind only.
        sets_attributes: whether the code of a call sets an attribute of the object, or of an object inside.
        has_tensors: whether it holds a tensor.
        large: large arrays and tensors, and those that are memory-mapped.
    """

    digest: bytes
    sets_attributes: bool
    has_tensors: bool
    large: list[object]


def read_state(function: object) -> State:
    """Return the state of a user's function."""
    pickler = _Contents()
    with contextlib.suppress(Exception):  # of the user's code, or too much; it then counts as far as it was read
        pickler.dump(function)
    return State(pickler.digest(), pickler.sets_attributes, pickler.has_tensors, pickler.large)


class _TooMuchError(Exception):
    pass


class _Contents(pickle.Pickler):
    """A pickler that digests its output, for comparison only."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        super().__init__(self, _PROTOCOL, buffer_callback=self._add_buffer)
        self._left = _MOST_BYTES
        self.sets_attributes = self.has_tensors = False
        self.large: list[object] = []

    def write(self, data: Any) -> int:
        self._hash.update(data)
        self._left -= len(data)
        if self._left < 0:
            raise _TooMuchError
        return len(data)

    def digest(self) -> bytes:
        return self._hash.digest()

    def _add_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        self.write(buffer.raw())
        return False  # it is not part of the output

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FunctionType):
            return _by_kind(value, _inside(value))
        if value is _Kind:
            return NotImplemented
        if isinstance(value, type):
            return _by_kind(value, _of_class(value))
        if isinstance(value, _GENERATORS) or inspect.ismodule(value):
            return _by_kind(value, None)
        self.has_tensors |= isinstance(value, torch.Tensor)
        if isinstance(value, (torch.Tensor, np.ndarray)) and (value.nbytes > _LARGE or isinstance(value, np.memmap)):
            self.large.append(value)
            return _by_kind(value, None)
        if isinstance(value, torch.Tensor):
            return _by_kind(value, _of_tensor(value))
        name = value.__name__ if isinstance(value, MethodType) else "__call__"
        kind: Any = type(getattr(value, "__self__", value))
        self.sets_attributes |= bool(set_by_call(kind, name))
        try:
            value.__reduce_ex__(_PROTOCOL)
        except Exception:  # it contains a lock or an open file
            return _by_kind(value, None)
        return NotImplemented


def _by_kind(value: object, state: object) -> tuple[object, ...]:
    """Return how a value is pickled: by its kind and state. The state comes after it, so it may contain the value."""
    return _Kind, (f"{type(value).__qualname__} {getattr(value, '__qualname__', '')}",), {"state": state}


class _Kind:
    def __init__(self, kind: str) -> None:
        self.kind = kind


def _inside(function: FunctionType) -> list[object]:
    """Return what a function holds or names: captured values, defaults, attributes, globals of the user's module."""
    captured = []
    for cell in function.__closure__ or ():
        try:
            captured.append(cell.cell_contents)
        except ValueError:  # an empty cell
            captured.append(None)
    named = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    changing = {name: each for name, each in named.items() if _can_change(each, function)}
    return [captured, function.__defaults__, function.__kwdefaults__, vars(function), changing]


def _can_change(value: object, named_by: FunctionType) -> bool:
    """Return whether a global value may be changed by a call: an object, or a function of the same module."""
    if isinstance(value, FunctionType):
        return value.__module__ == named_by.__module__
    return not (inspect.ismodule(value) or isinstance(value, type) or inspect.isroutine(value))


def _of_class(kind: type) -> dict[str, object]:
    calls = {name: each for name, each in vars(kind).items() if name in _CALLS and isinstance(each, FunctionType)}
    return calls | {name: each for name, each in vars(kind).items() if isinstance(each, _CHANGED_IN_PLACE)}


def _of_tensor(tensor: torch.Tensor) -> object:
    about = tuple(tensor.shape), str(tensor.dtype)
    if tensor.requires_grad or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return about
    return *about, tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
