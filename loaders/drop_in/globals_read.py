"""Find the module globals that the code of objects reads, without running any of it."""

from __future__ import annotations

import argparse
import contextlib
import dis
import functools
import itertools
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

Place = tuple[str, str]  # a module, and a name in it or a dotted one: "SIZE", "args.size"

MAIN = "__main__"
_MOST = 1000  # objects that are looked at: a data set may hold millions
_SHORT = 64  # items of a container that are looked at
_CALLED_BY_NAME = "forward"  # by torch's modules
# Special methods that workers do not call, or not to make samples.
_NOT_CALLED = {"__init__", "__new__", "__post_init__", "__init_subclass__", "__del__", "__repr__", "__str__"} | {
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__getnewargs__",
    "__getnewargs_ex__",
}
_CHANGES = {"append", "add", "extend", "insert", "update", "setdefault", "pop", "popitem", "remove", "discard", "clear"}
_STORES_ITEM = {"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"}
_BETWEEN = {"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL"}  # instructions that leave what was loaded last


class GlobalsRead:
    """The globals of the user's own modules that the methods of objects, and what these call and hold, read.

    Attributes:
        values: the values by their places, but for those that the same code sets: a file that each process opens.
    """

    def __init__(self, *objects: Any) -> None:
        self.values: dict[Place, Any] = {}
        self._stored: set[Place] = set()
        self._waiting = deque(objects)  # what is near comes first
        self._seen: dict[int, Any] = {}
        self._called = {_CALLED_BY_NAME}
        self._methods: dict[str, list[Any]] = {}  # by names that no code has called yet
        while self._waiting and len(self._seen) < _MOST:
            thing = self._waiting.popleft()
            if id(thing) not in self._seen:
                self._seen[id(thing)] = thing
                self._look_at(thing)
        self.values = {place: value for place, value in self.values.items() if place not in self._stored}

    def _look_at(self, thing: Any) -> None:
        kind = type(thing)
        if kind is FunctionType:
            self._waiting += [*vars(thing).values(), *_closure(thing)]
            if _is_users(thing.__globals__.get("__name__")):
                self._read(thing.__code__, thing.__globals__)
        elif issubclass(kind, type):
            if _is_users(thing.__module__):
                self._waiting += thing.__bases__
                for name, value in vars(thing).items():
                    if name in self._called or (_is_special(name) and name not in _NOT_CALLED):
                        self._waiting.append(value)
                    else:
                        self._methods.setdefault(name, []).append(value)
        elif kind is not ModuleType:
            self._waiting += _parts(thing)

    def _read(self, code: CodeType, names: Mapping[str, Any]) -> None:
        """Note what `code` reads and stores, given the globals of its module, and what it calls."""
        self._called.update(code.co_names)
        for name in self._methods.keys() & set(code.co_names):
            self._waiting += self._methods.pop(name)
        module = MAIN if names["__name__"] == "__mp_main__" else names["__name__"]
        instructions = list(dis.get_instructions(code))
        changes = _CHANGES & set(code.co_names) or {step.opname for step in instructions} & _STORES_ITEM
        for place, value, stored in _accesses(instructions, module, names):
            if stored or (changes and isinstance(value, (list, dict, set))):
                self._stored.add(place)
            elif type(value) is not ModuleType and not _is_special(place[1].rpartition(".")[2]):
                self.values[place] = value
                self._waiting.append(value)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._read(constant, names)


def _accesses(
    instructions: Iterable[dis.Instruction], module: str, names: Mapping[str, Any]
) -> Iterator[tuple[Place, Any, bool]]:
    """Yield (place, value, whether it is stored there) of each global and each attribute of one that code goes to."""
    loaded: tuple[Place, Any] | None = None
    for step in instructions:
        if step.opname in _BETWEEN:
            continue
        if step.opname in ("LOAD_GLOBAL", "STORE_GLOBAL"):
            loaded = ((module, step.argval), names[step.argval]) if step.argval in names else None
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"):
            loaded = loaded and _attribute_of(*loaded, step.argval)
        else:
            loaded = None
        if loaded is not None:
            yield *loaded, "STORE" in step.opname


def value_at(place: Place) -> Any:
    """Return what is at `place` in this process. Raises KeyError if nothing is."""
    module, path = place
    first, *rest = path.split(".")
    found = (module, first), _names_of(module)[first]
    for name in rest:
        attribute = _attribute_of(*found, name)
        if attribute is None:
            raise KeyError(name)
        found = attribute
    return found[1]


def _names_of(module: str) -> Mapping[str, Any]:
    """Return the globals of a module as its functions see them: those of a script are not its module's in a worker."""
    names = vars(sys.modules[module])
    if module == MAIN:
        for value in names.values():
            for part in (value, *(vars(value).values() if isinstance(value, type) else ())):
                if type(part) is FunctionType and part.__globals__.get("__name__") == names["__name__"]:
                    return part.__globals__
    return names


def _attribute_of(place: Place, owner: Any, name: str) -> tuple[Place, Any] | None:
    """Return the attribute of what is found at a place; None if it has none, or its attributes are not looked at."""
    kind = type(owner)
    if kind is ModuleType:
        known = _is_users(owner.__name__) and sys.modules.get(owner.__name__) is owner
        return ((owner.__name__, name), vars(owner)[name]) if known and name in vars(owner) else None
    family: Iterable[type] = kind.__mro__
    if issubclass(kind, type):
        family = type.mro(owner) if _is_users(owner.__module__) else ()
    elif not (_is_users(kind.__module__) or kind in (argparse.Namespace, SimpleNamespace)):
        return None
    for names in (_own_attributes(owner), *map(vars, family)):
        if name in names:
            return (place[0], f"{place[1]}.{name}"), names[name]
    return None


def _parts(thing: Any) -> Iterator[Any]:
    """Return what may hold code that `thing` calls."""
    kind = type(thing)
    if kind is MethodType:
        yield from (thing.__func__, thing.__self__)
    elif kind in (staticmethod, classmethod):
        yield thing.__func__
    elif kind is property:
        yield thing.fget
    elif kind is functools.partial:
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif kind in (list, tuple):
        yield from thing[:_SHORT]
    elif kind is dict:
        yield from itertools.islice(thing.values(), _SHORT)
    else:
        yield kind
        yield from _own_attributes(thing).values()
        for base in kind.__mro__:
            for slot in (value for value in vars(base).values() if type(value) is _SLOT):
                with contextlib.suppress(AttributeError):
                    yield slot.__get__(thing)


class _Slotted:
    __slots__ = ("slot",)


_SLOT = type(vars(_Slotted)["slot"])


def _own_attributes(thing: Any) -> Mapping[str, Any]:
    try:
        attributes = object.__getattribute__(thing, "__dict__")  # the user's __getattr__ is not run
    except AttributeError:
        return {}
    return attributes if isinstance(attributes, Mapping) else {}


def _closure(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is empty
            yield cell.cell_contents


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_users(name: Any) -> bool:
    """Say whether a module is the user's own: neither ours, nor Python's, nor of an installed package."""
    module = sys.modules.get(name) if isinstance(name, str) else None
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    return name.partition(".")[0] != "penstock" and _is_users_file(next(filter(None, places), None))


@functools.cache
def _is_users_file(file: str | None) -> bool:
    if file is None:
        return False
    path = Path(file)
    return not {"site-packages", "dist-packages"} & set(path.parts) and _PYTHON not in path.parents


_PYTHON = Path(sysconfig.get_path("stdlib"))
