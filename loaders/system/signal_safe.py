"""Conditions whose lock no signal leaves held, such as Ctrl-C in the thread that waits for batches."""

from __future__ import annotations

import threading
from typing import Any


class SignalSafeCondition(threading.Condition):
    """A condition that is free again, or held again, whatever a signal's handler raises at whatever moment.

    Python runs handlers between the calls of Python code, of which threading's `with condition` and `wait` consist: an
    exception that comes when the lock has just been taken leaves it held, and all other threads wait for ever.
    """

    # Looked up by `with` before the lock is taken; the lock's own methods are not interrupted once they have done it.
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
            if waiter in waiters:  # not notified, or by a notify() that was interrupted: it would take another's turn
                waiters.remove(waiter)
        return notified


def make_signal_safe(box: object) -> None:
    """Make the conditions of a queue, of multiprocessing or of this process, signal-safe."""
    for part in vars(box).values():
        if type(part) is threading.Condition:
            part.__class__ = SignalSafeCondition
