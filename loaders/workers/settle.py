"""What runs in a worker process: one batch for each work item."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import threading
from types import FrameType

import torch

_PR_SET_PDEATHSIG = 1
STACK_SIGNAL = signal.SIGUSR1  # makes a worker print its stack to stderr
OUTLASTED = (signal.SIGTERM, signal.SIGHUP)  # what a worker leaves to its parent, beside Ctrl-C
SENT_TO_JOBS = (*OUTLASTED, STACK_SIGNAL)  # what batch systems send to every process; SIGUSR1 if told so


def start_worker(worker_id: int) -> None:
    """Settle a new worker: it ends with its parent, leaves signals to it, uses one thread, can tell its stack."""
    del worker_id
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(STACK_SIGNAL, file=2, all_threads=True)
    _outlast_signals()
    _end_with_parent()
    torch.set_num_threads(1)
    cv2 = sys.modules.get("cv2")  # a user's source may have brought it along
    if cv2 is not None:
        cv2.setNumThreads(0)
    gc.freeze()  # the collector need not walk all that torch has imported again and again: 1 to 2 % of a worker's time


def _outlast_signals() -> None:
    """Leave SIGTERM and SIGHUP to the parent, which may want to finish a step and save; it needs batches for that.

    Batch systems, torchrun and terminals send them to every process of a job. Not by SIG_IGN, which the programs that a
    data set starts would inherit: they could not be terminated.
    """
    for number in OUTLASTED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _do_nothing)
            signal.siginterrupt(number, False)  # a read in a library goes on
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SENT_TO_JOBS)  # see fork_server_preload


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Handle a signal by going on."""


def _end_with_parent() -> None:
    """Leave no orphan, whatever ends the parent.

    A fork server stays while its workers do (each holds the pipe that keeps it alive), and torch's own watch looks at
    the server. So a thread waits for the parent's end of this process's pipe to close.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if os.getppid() != parent.pid:  # a child of the fork server: it ends with that as well
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def follow() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=follow, name="penstock-parent", daemon=True).start()
