"""Turns signals into exits: a command unwinds, cleans up, and exits with 128 + the signal's number."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
from types import FrameType

# Batch systems send these when a job's time is nearly over: SIGTERM, or SIGUSR1 if the job requested it.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_EXITING = (signal.SIGINT, *STOP_SIGNALS, signal.SIGHUP)
_AGAIN_S = 0.01  # longer than the rest of a finalizer


class SignalExit(SystemExit):
    """Raised in the main thread when the command is asked to stop.

    Attributes:
        code: 128 + the signal's number.
        name: name of the signal, such as "SIGTERM".
        note: further information for the user, such as where the work was saved.
    """

    def __init__(self, number: int, *, note: str = "") -> None:
        super().__init__(128 + number)
        self.name, self.note = signal.Signals(number).name, note


def exit_on_signals() -> None:
    """Turn Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP into SignalExit, unless they are already ignored.

    A second signal is handled as in `ignore_more_signals`. Python drops exceptions raised in a finalizer, such as
    h5py's when a file is read: a signal that arrives there is sent again.
    """
    for number in _EXITING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup and in a shell's background
            signal.signal(number, _leave)
    sys.unraisablehook = _send_again


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    ignore_more_signals()
    raise SignalExit(number)


def ignore_more_signals() -> None:
    """Undo `exit_on_signals` in a process that exits: a second Ctrl-C ends it at once, other signals are ignored.

    A batch system signals all processes of a job. Torchrun, one of them, passes the signal on to its ranks, so that
    each receives it twice; the second one must not interrupt the exit that the first one has started.
    """
    for number in _EXITING:
        if signal.getsignal(number) is _leave:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGINT else signal.SIG_IGN)


def _send_again(dropped: sys.UnraisableHookArgs) -> None:
    """Replace sys.unraisablehook, so that a signal is not lost."""
    stop = signal_before(dropped.exc_value)
    if stop is None:
        sys.__unraisablehook__(dropped)
        return
    number = signal.Signals[stop.name]

    def send() -> None:
        time.sleep(_AGAIN_S)
        # Otherwise another signal was handled meanwhile, and the command exits.
        if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler):
            os.kill(os.getpid(), number)

    _thread.start_new_thread(send, ())
    signal.signal(number, _leave)


def signal_before(error: BaseException | None) -> SignalExit | None:
    """Return the signal that was being handled when `error` was raised, directly or indirectly, or None.

    A signal sent to a whole job also ends the workers of torch's own DataLoader, and torch raises an error about them.
    """
    while error is not None and not isinstance(error, SignalExit):
        error = error.__context__
    return error
