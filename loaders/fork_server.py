"""Starting worker processes so that a signal at any moment leaves no half of one behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from types import FrameType
from typing import Any

_PRELOAD = "penstock.loaders.fork_server_preload"
_DEFERRED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ready_fork_server() -> Any:
    """The multiprocessing context of a fork server that has imported torch; waits for that, seconds the first time.

    A signal in that time interrupts the wait, as it should; starting a worker afterwards takes milliseconds.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_PRELOAD])  # torch is imported once, not once a worker
    resource_tracker.ensure_running()  # unblocks SIGINT when it starts
    # Blocked until the server is far enough to ignore it: Ctrl-C in its first second would print a traceback.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    first = context.Process(target=os.getpid)  # answers when the server does
    first.start()
    first.join()
    first.close()
    return context


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Let Ctrl-C and its like act when the block is done, instead of cutting it in two; a second one acts at once.

    A worker whose start is cut in two dies with a traceback, or does not die.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread
        return
    handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        if len(arrived) > 1:
            handlers[number](number, frame)

    for number in _DEFERRED:
        handler = signal.getsignal(number)
        if callable(handler):
            handlers[number] = handler
            signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is note:
                signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])
