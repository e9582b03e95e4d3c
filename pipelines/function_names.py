"""Names for functions that users pass, so that resuming a saved state detects a different function."""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import numpy as np
import torch

_SCRIPT = ("__main__", "__mp_main__")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, np.dtype, range, slice)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SET = re.compile(r"\{([^{}:\[\]()]*)\}")
_MAX_CHARACTERS = 100  # of a name; a longer one is cut, with a digest for the rest
_MAX_BYTES = 1 << 20  # of an array that is digested
_MAX_DEPTH = 6  # of nested functions and objects
_MAX_PARTS = 100  # of a collection; a larger one is one part
# Fixed print options, so that a printed array does not depend on the program's settings.
_PRINTED: Any = {"edgeitems": 3, "threshold": 1000, "precision": 8, "suppress": False, "linewidth": 75, "sign": "-"}
_OF_MODULES = frozenset(vars(torch.nn.Module())) - {"_modules"}


@dataclass(frozen=True)
class _At:
    """The place of a value inside a function.

    Attributes:
        parts: texts of the parts found, by the steps to them; filled in during the walk.
        without: steps to the parts that do not count.
        steps: steps to the value.
        within: ids of the functions and objects that contain it, outermost first.
        is_apart: whether it belongs to a part that counts as a whole.
        called: name of the method that is called on an object.
    """

    parts: dict[str, str] = field(default_factory=dict)
    without: Collection[str] = ()
    steps: str = ""
    within: tuple[int, ...] = ()
    is_apart: bool = False
    called: str = "__call__"

    def into(self, holder: Any, step: str) -> _At:
        return _At(self.parts, self.without, f"{self.steps}/{step}", (*self.within, id(holder)), self.is_apart)

    def apart(self, holder: Any) -> _At:
        """Return a place inside a part that counts as a whole."""
        return _At(within=(*self.within, id(holder)), is_apart=True)

    def counts(self, text: str) -> bool:
        """Record the text found at this place, and return whether it counts."""
        self.parts[self.steps] = text
        return self.steps not in self.without

    def keep(self, text: str) -> str:
        return text if self.counts(text) else ""

    def is_deep(self, value: Any) -> bool:
        """Return whether only the name of a function or object counts: it contains itself, or is nested too deep."""
        return len(self.within) > _MAX_DEPTH or id(value) in self.within


def name_function(function: Any, without: Collection[str] = ()) -> str:
    """Return a name that is the same in every process and differs for other parameters.

    Functions are named by module and name; functions of a script, lambdas and inner functions also by a digest of their
    code, defaults and captured values. Other callables are named by class and parameters: by their repr and the
    callables in their attributes, which a repr does not distinguish, or by all attributes if the repr is Python's
    default. Weights of modules are omitted, because training changes them.

    without: parts that do not count, by their names in `find_parts`.
    """
    with np.printoptions(**_PRINTED):
        name = _name(function, _At(without=without))
    if len(name) <= _MAX_CHARACTERS:
        return name
    digest = hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=8).hexdigest()
    return f"{name[: _MAX_CHARACTERS - 20]}...{digest}"


def find_parts(function: Any) -> dict[str, str]:
    """Return the parts of a name: attributes, captured values and arguments, including nested ones."""
    at = _At()
    with np.printoptions(**_PRINTED):
        _name(function, at)
    return at.parts


def _own_attributes(function: Any, called: str) -> dict[str, Any]:
    """Return the attributes of an object, without those that calls set, since these are not parameters."""
    own = getattr(function, "__dict__", {})
    slots = [name for kind in type(function).__mro__ for name in _as_names(vars(kind).get("__slots__", ()))]
    own = {**{name: getattr(function, name) for name in slots if hasattr(function, name)}, **own}
    without = _OF_MODULES if isinstance(function, torch.nn.Module) else frozenset()
    without = without | set_by_call(type(function), called)  # type: ignore[arg-type]  # mypy holds no class for hashable
    return {name: value for name, value in own.items() if name not in without}


@functools.lru_cache(maxsize=1024)
def set_by_call(kind: type, method: str) -> frozenset[str]:
    """Return the names of the attributes that a method sets, or another method that it calls.

    Found in the code, because in a trial call random draws may decide which attributes are set.
    """
    found: set[str] = set()
    waiting, seen = [method, "forward"], {"__init__"}
    while waiting:
        name = waiting.pop()
        for base in () if name in seen else kind.__mro__:
            function = vars(base).get(name)
            if inspect.isfunction(function) and base is not torch.nn.Module:
                found.update(_set_in(function.__code__))
                waiting += function.__code__.co_names
        seen.add(name)
    return frozenset(found)


def _set_in(code: CodeType) -> Iterator[str]:
    """Yield the names of the attributes of its first argument that a function sets."""
    before: Any = None
    for step in dis.get_instructions(code):
        # One instruction may load two variables.
        holder = before[-1] if isinstance(before, tuple) and before else before
        if step.opname == "STORE_ATTR" and holder in code.co_varnames[:1]:
            yield str(step.argval)
        before = step.argval


def _as_names(slots: Any) -> tuple[str, ...]:
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _name(function: Any, at: _At) -> str:
    # A function compiled by torch.compile contains settings and paths of the machine, and addresses.
    function = getattr(function, "__dict__", {}).get("_torchdynamo_orig_callable", function)
    if isinstance(function, functools.partial):
        given = [_describe(each, at.into(function, str(number))) for number, each in enumerate(function.args)]
        keywords = sorted(function.keywords.items())
        given += [f"{key}={_describe(value, at.into(function, key))}" for key, value in keywords]
        return f"partial({', '.join([_name(function.func, at.into(function, 'func')), *given])})"
    owner = getattr(function, "__self__", None)
    if owner is not None and not inspect.ismodule(owner) and hasattr(function, "__name__"):
        return f"{_name(owner, replace(at, called=function.__name__))}.{function.__name__}"
    if inspect.isfunction(function):
        name = _dotted(function)
        is_named = function.__module__ not in _SCRIPT and "<" not in function.__qualname__
        return name if is_named or at.is_deep(function) else f"{name}#{_digest(function, at)}"
    if isinstance(function, type) or inspect.isroutine(function):
        return _dotted(function)
    return _name_object(function, at)


def _dotted(named: Any) -> str:
    module = getattr(named, "__module__", None) or ""
    return f"{'__main__' if module in _SCRIPT else module}.{getattr(named, '__qualname__', named)}"


def _name_object(value: Any, at: _At) -> str:
    kind = _dotted(type(value))
    if at.is_deep(value):
        return kind
    own_repr: Any = type(value).__repr__
    if own_repr is object.__repr__ or isinstance(value, torch.nn.Module):
        return f"{kind}({_join(_attributes(value, at))})"
    try:
        name = f"{kind}:{' '.join(_SET.sub(_sort, _ADDRESS.sub('', repr(value))).split())}"
    except Exception:  # from the user's code
        name = kind
    held = _attributes(value, at, only=_holds_callable)
    return f"{name}({_join(held)})" if held else name


def _sort(found: re.Match[str]) -> str:
    """Return a printed set in an order that is the same in every process."""
    return f"{{{', '.join(sorted(found[1].split(', ')))}}}"


def _attributes(value: Any, at: _At, only: Callable[[Any], bool] = lambda value: True) -> dict[str, str]:
    """Return what describes the attributes of an object that count."""
    own = {name: (each, at.into(value, name)) for name, each in _own_attributes(value, at.called).items() if only(each)}
    texts = {name: _describe(each, inside) for name, (each, inside) in own.items()}
    return {name: text for name, text in texts.items() if own[name][1].steps not in at.without}


def _holds_callable(value: Any, depth: int = 0) -> bool:
    """Return whether a value is a callable, or a collection that contains one."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        others = (each for each in value if type(each) not in _PLAIN)
        return depth < _MAX_DEPTH and any(_holds_callable(each, depth + 1) for each in others)
    return callable(value) and not isinstance(value, type)


def _join(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={each}" for name, each in sorted(found.items()))


def _describe(value: Any, at: _At) -> str:
    """Return the text of a parameter; for large values and objects that cannot be called, their class."""
    if isinstance(value, enum.Enum):
        return at.keep(str(value))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _PLAIN):
        return at.keep(repr(value))
    if at.is_deep(value):
        return _dotted(type(value))
    if isinstance(value, (tuple, list, Mapping)):
        return _describe_collection(value, at)
    if isinstance(value, (set, frozenset)):
        return at.keep(f"{{{', '.join(sorted(_describe(each, at.apart(value)) for each in value))}}}")
    if isinstance(value, torch.Tensor):
        return at.keep(f"{tuple(value.shape)} of {value.dtype}{_digest_tensor(value)}")
    if isinstance(value, np.ndarray):
        inside = _digest_bytes(value.tobytes()) if value.nbytes <= _MAX_BYTES and value.dtype != object else ""
        return at.keep(f"{value.shape} of {value.dtype}{inside}")
    if not callable(value):
        return at.keep(_dotted(type(value)))
    is_named = inspect.isroutine(value) or isinstance(value, type)
    return _name(value, at) if at.counts(_dotted(value if is_named else type(value))) else ""


def _describe_collection(value: Any, at: _At) -> str:
    is_mapping, apart, is_whole = isinstance(value, Mapping), at.apart(value), at.is_apart or len(value) > _MAX_PARTS
    if is_whole and not is_mapping and all(type(each) in _PLAIN for each in value):
        return at.keep(repr(list(value)))
    if is_mapping:
        found = sorted(((_describe(key, apart), each) for key, each in value.items()), key=lambda each: each[0])
    else:
        found = [(str(number), each) for number, each in enumerate(value)]
    if not is_whole and not at.counts(", ".join(step for step, _ in found)):
        return ""
    texts = [_describe(each, apart if is_whole else at.into(value, step)) for step, each in found]
    if not is_mapping:
        text = f"[{', '.join(texts)}]"
    else:
        text = f"{{{', '.join(f'{step}: {text}' for (step, _), text in zip(found, texts, strict=True))}}}"
    return at.keep(text) if is_whole else text


def _digest_tensor(value: torch.Tensor) -> str:
    """Return a digest of a constant; "" for tensors that are trained, large, or on a device."""
    is_constant = value.device.type == "cpu" and not value.requires_grad and value.layout == torch.strided
    if not is_constant or value.nbytes > _MAX_BYTES:
        return ""
    return _digest_bytes(value.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def _digest_bytes(data: bytes) -> str:
    return f" {hashlib.blake2b(data, digest_size=8).hexdigest()}"


def _digest(function: Any, at: _At) -> str:
    """Return a digest of a function's code, defaults and captured values, not of where it is defined."""
    digest = hashlib.blake2b(digest_size=8)
    _add_code(digest, function.__code__)
    captured = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            captured.append(_describe(cell.cell_contents, at.into(function, name)))
        except ValueError:  # an empty cell
            captured.append("")
    given = [function.__defaults__ or (), function.__kwdefaults__ or {}]
    defaults = _describe(given, at.into(function, "defaults"))
    digest.update("\0".join((defaults, *captured)).encode(errors="surrogateescape"))
    return digest.hexdigest()


def _add_code(digest: Any, code: CodeType) -> None:
    digest.update(code.co_code)
    digest.update("\0".join((*code.co_names, *code.co_freevars)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(digest, constant)
        else:
            digest.update(_describe(constant, _At()).encode(errors="surrogateescape"))
