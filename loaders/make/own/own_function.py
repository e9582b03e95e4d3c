"""Whether threads can share a user's function, and whether processes can find it."""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

_TRIAL_S = 0.05  # duration of the calls in one thread, before the same calls in each of two threads
_SERIAL = 1.5  # two threads that take this many times as long wait for each other
_SCRIPT = ("__main__", "__mp_main__")  # module name of the user's script, and its name in a spawned process


def measure_lock(call: Callable[[], object]) -> tuple[float, float]:
    """Return the processor time of a call, and how much of it excludes calls in other threads, in seconds.

    The second is 0 if two threads do not wait for each other, the whole call otherwise. Takes a tenth of a second.
    """
    calls, started, used = 0, time.perf_counter(), time.thread_time()
    while (alone := time.perf_counter() - started) < _TRIAL_S:
        call()
        calls += 1
    cost = (time.thread_time() - used) / calls
    begin = threading.Barrier(3)

    def again() -> None:
        with contextlib.suppress(Exception):  # the stream will name the sample
            call()  # the first call of a thread may make a copy
        begin.wait()
        with contextlib.suppress(Exception):
            for _ in range(calls):
                call()

    threads = [threading.Thread(target=again) for _ in range(2)]
    for thread in threads:
        thread.start()
    begin.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    return cost, cost if time.perf_counter() - started > _SERIAL * alone else 0.0


def needs_script(function: object) -> bool:
    """Return whether a worker process cannot find a function, or must import the user's script to find it.

    This is the case for functions defined in a script, a notebook or an interpreter, for lambdas and inner
    functions, and for objects that contain them, such as a functools.partial or a list of transforms.
    """
    modules = _Modules()
    try:
        modules.dump(function)
    except Exception:
        return True
    return not all(map(_can_be_imported, modules.found))


class _Modules(ForkingPickler):
    """A pickler that records the modules that the unpickling process must import."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.found: set[str] = set()

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type) or inspect.isroutine(value):
            self.found.add(getattr(value, "__module__", None) or "builtins")
        if isinstance(value, torch.Tensor):  # torch would place it in memory that forked processes share
            return torch.Tensor, ()
        return NotImplemented


def _can_be_imported(module: str) -> bool:
    """Return whether a new process can import a module. It has our sys.path, but not modules created at run time."""
    top = module.partition(".")[0]
    if top in _SCRIPT:
        return False
    finders = [finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return any(find(top, None) is not None for find in finders)
