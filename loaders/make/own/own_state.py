"""The state of a user's function: a digest of all that its calls may change."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import pickle
import random
import sys
import sysconfig
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.pipelines.function_names import set_by_call

# Draws of a function's own generator are reported elsewhere, and threads may share it.
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator, torch.Generator)
_GENERAL = (object, torch.nn.Module)  # classes without a state
_STANDARD = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib"))
_PACKAGES = {"site-packages", "dist-packages"}
_PROTOCOL = 5
_PICKLING = ("__reduce_ex__", "__reduce__", "__getstate__")
_OF_PYTHON = 1 << 9  # flag of classes that are not written in C
_LARGE, _MOST_BYTES = 1 << 26, 1 << 28  # of an array; of all that is digested


class State(NamedTuple):
    """The state of a function.

    Attributes:
        digest: of its content: attributes, captured values, attributes of classes, and global values that it, methods
            or other functions of the user's modules name. Large arrays, random generators, tensors that are trained,
            and what cannot be pickled, such as locks, count by their kind only.
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
        if isinstance(value, (torch.Tensor, np.ndarray)) and _is_large(value):
            self.large.append(value)
            return _by_kind(value, None)
        if isinstance(value, torch.Tensor):
            return _by_kind(value, _of_tensor(value))
        name = value.__name__ if isinstance(value, MethodType) else "__call__"
        kind: Any = type(getattr(value, "__self__", value))
        self.sets_attributes |= bool(set_by_call(kind, name))
        return _by_content(value)


def _is_large(value: torch.Tensor | np.ndarray[Any, Any]) -> bool:
    is_strided = not isinstance(value, torch.Tensor) or value.layout == torch.strided
    return isinstance(value, np.memmap) or (is_strided and value.nbytes > _LARGE)


def _by_kind(value: object, state: object) -> tuple[object, ...]:
    """Return how a value is pickled: by its kind and state. The state comes after it, so it may contain the value."""
    return _Kind, (f"{type(value).__qualname__} {getattr(value, '__qualname__', '')}",), {"state": state}


class _Kind:
    def __init__(self, kind: str) -> None:
        self.kind = kind


def _by_content(value: object) -> tuple[object, ...]:
    """Return how an object is pickled: as usual, and by its attributes, which a class of the user may leave out."""
    is_installed = _is_installed(type(value).__module__)
    try:
        usual = value.__reduce_ex__(_PROTOCOL)
    except Exception:  # such as a lock or an open file
        return _by_kind(value, None if is_installed else _attributes(value))
    if isinstance(usual, str):  # by its name, such as a function with a cache
        return _by_kind(value, getattr(value, "__wrapped__", None))
    if is_installed or all(getattr(type(value), name, None) is getattr(object, name, None) for name in _PICKLING):
        return usual
    state = usual[2] if len(usual) > 2 else None
    return (*usual[:2], [state, _attributes(value)], *usual[3:5])


def _attributes(value: object) -> list[object]:
    named = (
        name for kind in type(value).__mro__ for name, each in vars(kind).items() if inspect.ismemberdescriptor(each)
    )
    slots = [getattr(value, name, None) for name in named] if type(value).__flags__ & _OF_PYTHON else []
    return [dict(getattr(value, "__dict__", {})), slots]


def _inside(function: FunctionType) -> list[object]:
    """Return what a function holds or names: captured values, defaults, attributes, globals of the user's modules."""
    captured = []
    for cell in function.__closure__ or ():
        try:
            captured.append(cell.cell_contents)
        except ValueError:  # an empty cell
            captured.append(None)
    names = dict.fromkeys(_names_in(function.__code__))
    named = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for module in [each for each in named.values() if inspect.ismodule(each) and _is_of_user(each.__name__, function)]:
        named |= {f"{module.__name__}.{name}": vars(module)[name] for name in names if name in vars(module)}
    changing = {name: each for name, each in named.items() if _can_change(each, function)}
    return [captured, function.__defaults__, function.__kwdefaults__, vars(function), changing]


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that code uses, with the code of inner functions and comprehensions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _can_change(value: object, named_by: FunctionType) -> bool:
    """Return whether a global value may be changed by a call: an object, or a function or class of the user."""
    if isinstance(value, (FunctionType, type)):
        return _is_of_user(value.__module__, named_by)
    return not (inspect.ismodule(value) or inspect.isroutine(value))


def _is_of_user(module: str, named_by: FunctionType) -> bool:
    """Return whether a module is the one of a function, or is not installed."""
    return module == named_by.__module__ or not _is_installed(module)


@lru_cache(maxsize=1024)
def _is_installed(module: str) -> bool:
    """Return whether a module is of Python, of a package, or unknown; False for the user's script or notebook."""
    if module in ("__main__", "__mp_main__"):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or file.startswith(_STANDARD) or not _PACKAGES.isdisjoint(Path(file).parts)


def _of_class(kind: type) -> list[dict[str, object]]:
    """Return the methods and the attributes of a class and its bases."""
    if not kind.__flags__ & _OF_PYTHON:
        return []
    bases = [base for base in kind.__mro__ if base not in _GENERAL and base.__flags__ & _OF_PYTHON]
    found = [{name: _method(each) for name, each in vars(base).items()} for base in bases]
    return [
        {
            name: each
            for name, each in attributes.items()
            if isinstance(each, FunctionType) or not (name.startswith("__") or inspect.isroutine(each))
        }
        for attributes in found
    ]


def _method(value: object) -> object:
    """Return the function of a method or a property."""
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    if isinstance(value, property):
        return value.fget
    return value.func if isinstance(value, cached_property) else value


def _of_tensor(tensor: torch.Tensor) -> object:
    about = tuple(tensor.shape), str(tensor.dtype)
    if tensor.requires_grad or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return about
    return *about, tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8).numpy()
