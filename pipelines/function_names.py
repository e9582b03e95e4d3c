"""Names functions that users pass, so that a saved state can tell whether it is the same one."""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from types import CodeType
from typing import Any

import numpy as np
import torch

_SCRIPT = ("__main__", "__mp_main__")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, np.dtype, range, slice)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_MAX_CHARACTERS = 100  # of a name; a longer one is cut, and a digest stands for the rest
_MAX_BYTES = 1 << 20  # of an array that is looked at
_MAX_DEPTH = 6  # of functions and objects in each other
# What is left of a printed array does not depend on the program's settings.
_PRINTED: Any = {"edgeitems": 3, "threshold": 1000, "precision": 8, "suppress": False, "linewidth": 75, "sign": "-"}
_Within = tuple[int, ...]  # ids of the functions and objects that hold the one at hand, the outermost first
_OF_MODULES = frozenset(vars(torch.nn.Module())) - {"_modules"}


def name_function(function: Any, attributes: Collection[str] | None = None) -> str:
    """Return a name that is the same in another process, and another one for other parameters.

    Functions are named by module and name, those of a script and those without a name of their own (lambdas, inner
    functions) by a digest of their code, defaults and captured values as well. Other callables are named by class and
    parameters: by their repr and the functions and callables that they hold, which a repr does not tell apart, or by
    all attributes where the repr is Python's own. Weights of modules are left out: they change in a training.

    attributes: names of the attributes that count; by default all.
    """
    with np.printoptions(**_PRINTED):
        name = _name(function, (), attributes)
    if len(name) <= _MAX_CHARACTERS:
        return name
    digest = hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=8).hexdigest()
    return f"{name[: _MAX_CHARACTERS - 20]}...{digest}"


def plain_attributes(function: Any) -> dict[str, str]:
    """Return the attributes of an object, or of that which a method belongs to, as a name holds them."""
    owner = getattr(function, "__self__", function)
    return _attributes(function if inspect.ismodule(owner) else owner, (), None)


def _own_attributes(function: Any) -> dict[str, Any]:
    own = getattr(function, "__dict__", {})
    slots = [name for kind in type(function).__mro__ for name in _as_names(vars(kind).get("__slots__", ()))]
    own = {**{name: getattr(function, name) for name in slots if hasattr(function, name)}, **own}
    without = _OF_MODULES if isinstance(function, torch.nn.Module) else ()
    return {name: value for name, value in own.items() if name not in without}


def _as_names(slots: Any) -> tuple[str, ...]:
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _name(function: Any, within: _Within, attributes: Collection[str] | None = None) -> str:
    if isinstance(function, functools.partial):
        inside = (*within, id(function))
        given = [_describe(each, inside) for each in function.args]
        given += [f"{key}={_describe(value, inside)}" for key, value in sorted(function.keywords.items())]
        return f"partial({', '.join([_name(function.func, inside), *given])})"
    owner = getattr(function, "__self__", None)
    if owner is not None and not inspect.ismodule(owner) and hasattr(function, "__name__"):
        return f"{_name(owner, within, attributes)}.{function.__name__}"
    if inspect.isfunction(function):
        name = _dotted(function)
        is_named = function.__module__ not in _SCRIPT and "<" not in function.__qualname__
        return name if is_named or _is_deep(function, within) else f"{name}#{_digest(function, within)}"
    if isinstance(function, type) or inspect.isroutine(function):
        return _dotted(function)
    return _name_object(function, within, attributes)


def _is_deep(value: Any, within: _Within) -> bool:
    """Return whether a function or an object is only to be named: it holds itself, or lies too deep."""
    return len(within) > _MAX_DEPTH or id(value) in within


def _dotted(named: Any) -> str:
    module = getattr(named, "__module__", None) or ""
    return f"{'__main__' if module in _SCRIPT else module}.{getattr(named, '__qualname__', named)}"


def _name_object(value: Any, within: _Within, attributes: Collection[str] | None = None) -> str:
    kind = _dotted(type(value))
    if _is_deep(value, within):
        return kind
    own_repr: Any = type(value).__repr__
    if own_repr is object.__repr__ or isinstance(value, torch.nn.Module):
        found = _attributes(value, within, attributes)
        return f"{kind}({_join(found)})"
    try:
        name = f"{kind}:{' '.join(_ADDRESS.sub('', repr(value)).split())}"
    except Exception:  # of the user's
        name = kind
    held = _attributes(value, within, attributes, only=_holds_callable)
    return f"{name}({_join(held)})" if held else name


def _attributes(
    value: Any, within: _Within, names: Collection[str] | None, only: Callable[[Any], bool] = lambda value: True
) -> dict[str, str]:
    """Return what describes the attributes of an object, those of `names` if they are given."""
    own = {name: each for name, each in _own_attributes(value).items() if names is None or name in names}
    return {name: _describe(each, (*within, id(value))) for name, each in own.items() if only(each)}


def _holds_callable(value: Any) -> bool:
    """Return whether a value is a function or an object that can be called, or a collection with one."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return any(map(_holds_callable, value))
    return callable(value) and not isinstance(value, type)


def _join(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={each}" for name, each in sorted(found.items()))


def _describe(value: Any, within: _Within) -> str:
    """Return the text of a parameter; of objects that cannot be called, and of what is large, their class."""
    if isinstance(value, enum.Enum):
        return str(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _PLAIN):
        return repr(value)
    if _is_deep(value, within):
        return _dotted(type(value))
    inside = (*within, id(value))
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_describe(each, inside) for each in value)}]"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(_describe(each, inside) for each in value))}}}"
    if isinstance(value, Mapping):
        pairs = sorted(f"{_describe(key, inside)}: {_describe(each, inside)}" for key, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} of {value.dtype}{_digest_tensor(value)}"
    if isinstance(value, np.ndarray):
        inside_array = _digest_bytes(value.tobytes()) if value.nbytes <= _MAX_BYTES and value.dtype != object else ""
        return f"{value.shape} of {value.dtype}{inside_array}"
    return _name(value, within) if callable(value) else _dotted(type(value))


def _digest_tensor(value: torch.Tensor) -> str:
    """Return a digest of a constant; "" for what trains, is large, or would have to come from a device."""
    is_constant = value.device.type == "cpu" and not value.requires_grad and value.layout == torch.strided
    if not is_constant or value.nbytes > _MAX_BYTES:
        return ""
    return _digest_bytes(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def _digest_bytes(data: bytes) -> str:
    return f" {hashlib.blake2b(data, digest_size=8).hexdigest()}"


def _digest(function: Any, within: _Within) -> str:
    """Return a digest of a function's code, defaults and captured values, not of where it is defined."""
    digest = hashlib.blake2b(digest_size=8)
    _add_code(digest, function.__code__)
    captured, inside = [], (*within, id(function))
    for cell in function.__closure__ or ():
        try:
            captured.append(_describe(cell.cell_contents, inside))
        except ValueError:  # it is not filled yet
            captured.append("")
    defaults = _describe([function.__defaults__ or (), function.__kwdefaults__ or {}], inside)
    digest.update("\0".join((defaults, *captured)).encode(errors="surrogateescape"))
    return digest.hexdigest()


def _add_code(digest: Any, code: CodeType) -> None:
    digest.update(code.co_code)
    digest.update("\0".join((*code.co_names, *code.co_freevars)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(digest, constant)
        else:
            digest.update(_describe(constant, ()).encode(errors="surrogateescape"))
