"""Says whether a worker process can be sent a function."""

from __future__ import annotations

import inspect
import io
import sys
from multiprocessing.reduction import ForkingPickler
from typing import Any

_SCRIPT = ("__main__", "__mp_main__")  # what the user's script is called, and in a process that was spawned


class _Modules(ForkingPickler):
    """Pickler that notes which modules the process that unpickles has to import."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.found: set[str] = set()

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type) or inspect.isroutine(value):
            self.found.add(getattr(value, "__module__", None) or "builtins")
        return NotImplemented


def needs_script(function: Any) -> bool:
    """Return whether a worker process finds `function` only by importing the user's script, or not at all.

    So it is for what a script, a notebook or an interpreter defines, for lambdas and inner functions, and for what
    holds such a function, for example a functools.partial or a list of transforms.
    """
    modules = _Modules()
    try:
        modules.dump(function)
    except Exception:
        return True
    return not all(map(_can_be_imported, modules.found))


def _can_be_imported(module: str) -> bool:
    """Return whether a new process finds a module by its name: it has our sys.path, but not what was made by hand."""
    top = module.partition(".")[0]
    if top in _SCRIPT:
        return False
    finders = [finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return any(find(top, None) is not None for find in finders)
