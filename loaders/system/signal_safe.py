"""Conditions with a lock that survives signals, such as Ctrl-C in the thread that waits for batches."""

from __future__ import annotations

import threading
from typing import Any


class SignalSafeCondition(threading.Condition):
    """A condition with a lock that stays correct if a signal handler raises an exception at any moment.

    Python runs handlers between Python calls, and threading's `with condition` and `wait` consist of such calls. An
    exception just after the lock is taken would leave it locked, and all other threads would wait forever.
    """

    # `with` looks these up before the lock is taken; the lock's methods cannot be interrupted after taking it.
    __enter__ = property(lambda self: self._lock.__enter__)
    __exit__ = property(lambda self: self._lock.__exit__)

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock, which must be held once, until notified or for `timeout` seconds, then take it again."""
        ours: Any = self
        waiter = threading.Lock()
        waiter.acquire()
        waiters, release, acquire, notified = ours._waiters, ours._lock.release, ours._lock.acquire, False
        waiters.append(waiter)
        try:
            release()
            notified = waiter.acquire(timeout=-1 if timeout is None else timeout)
        finally:
            acquire()
            if waiter in waiters:  # not notified, or notify() was interrupted: it would take another thread's turn
                waiters.remove(waiter)
        return notified


def make_signal_safe(box: object) -> None:
    """Make the conditions of a queue signal-safe, for a queue of multiprocessing or of this process."""
    for part in vars(box).values():
        if type(part) is threading.Condition:
            part.__class__ = SignalSafeCondition
