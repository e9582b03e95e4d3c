"""The global random generators of Python, numpy and torch: who may draw, and whether someone did."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

RandomState = tuple[object, ...]
_TRIALS = 12  # if the state changes in every one of these calls, the calls change it, and not another thread


class _Turns:
    """A lock: many threads may run transforms that do not draw, or one thread a transform that draws.

    If a thread drew while another one runs with seeded generators, it would change the other thread's draws.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing, self._waiting = 0, 0
        self._alone: int | None = None  # the thread that runs alone; it may enter again

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Run the block, possibly together with other shared blocks."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._alone in (None, me) and not (self._waiting and self._alone is None))
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Run the block alone. It has priority over shared blocks that begin to wait later."""
        me = threading.get_ident()
        if self._alone == me:
            yield
            return
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: self._alone is None and not self._sharing)
                self._alone = me
            finally:
                self._waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._alone = None
                self._changed.notify_all()


_turns = _Turns()
os.register_at_fork(after_in_child=_turns.__init__)  # type: ignore[misc]  # the threads are the parent's


def read_random_state() -> RandomState:
    """Return the state of all three generators."""
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    if state["bit_generator"] == "MT19937":
        words: object = (state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"], state["gauss"])
    else:  # what the program has given to np.random.set_bit_generator
        words = str(state)
    return random.getstate(), words, torch.default_generator.get_state().numpy().tobytes()


def is_drawing(call: Callable[[], object]) -> bool:
    """Return whether `call` draws: it is called until the state stays the same, since other threads may draw too."""
    for _ in range(_TRIALS):
        before = read_random_state()
        call()
        if read_random_state() == before:
            return False
    return True


def seed_generators(words: npt.NDArray[np.uint64]) -> None:
    """Seed all three generators with random words, uint64 [4] each below 2**32."""
    random.seed(int(words[0]))
    try:
        np.random.seed(int(words[1]))  # noqa: NPY002
    except TypeError:  # another generator than Mersenne Twister
        kind = type(getattr(np.random, "get_bit_generator")())  # noqa: B009  # which its stubs leave out
        np.random.set_state(kind(int(words[1])).state)  # noqa: NPY002
    torch.default_generator.manual_seed(int(words[2]) | int(words[3]) << 32)


shared_draws = _turns.shared  # runs a block that is to draw nothing: only others of its kind run at the same time


@contextlib.contextmanager
def own_draws() -> Iterator[None]:
    """Run a block that may seed the generators and draw from them, alone; their state is put back at the end."""
    with _turns.alone(), kept_draws():
        yield


@contextlib.contextmanager
def kept_draws() -> Iterator[None]:
    """Put the state of the generators back after the block; other threads may draw at the same time."""
    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    before = random.getstate(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(numpy_state)  # noqa: NPY002
        torch.default_generator.set_state(before[1])
