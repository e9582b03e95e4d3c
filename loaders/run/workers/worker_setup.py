"""Setup of a new worker process: its signals, its threads, and its end with its parent."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import threading
from collections.abc import Mapping

import torch

from penstock.loaders.run.workers.leftovers import mark_temporary_folder, remove_folder, remove_own_folder_at_exit

_PR_SET_PDEATHSIG = 1
STACK_SIGNAL = signal.SIGUSR1  # makes a worker print its stack to stderr
OUTLASTED = (signal.SIGTERM, signal.SIGHUP)  # signals that a worker leaves to its parent, in addition to Ctrl-C
SENT_TO_JOBS = (*OUTLASTED, STACK_SIGNAL)  # signals that batch systems send to every process, SIGUSR1 on request


def start_worker(worker_id: int, environment: Mapping[str, str]) -> None:
    """Make a new worker end with its parent, leave signals to it, use one thread, and print its stack on request.

    environment: the parent's current environment. A worker inherits that of the fork server, which may have started
    before a notebook, for example, set the credentials of a storage.
    """
    del worker_id
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # deferred_signals blocked it
    faulthandler.register(STACK_SIGNAL, file=2, all_threads=True)
    _outlast_signals()
    _end_with_parent()
    torch.set_num_threads(1)
    cv2 = sys.modules.get("cv2")  # a user's source may have imported it
    if cv2 is not None:
        cv2.setNumThreads(0)
    gc.freeze()  # the collector skips everything that torch has imported, which saves 1 to 2 % of a worker's time


def _outlast_signals() -> None:
    """Ignore SIGTERM and SIGHUP, because the parent may want to finish a step and save, and needs batches for that.

    Batch systems, torchrun and terminals send them to every process of a job. A handler is set instead of SIG_IGN,
    because programs that a data set starts would inherit SIG_IGN and could not be terminated.
    """
    for number in OUTLASTED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
            signal.siginterrupt(number, False)  # a read in a library continues
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SENT_TO_JOBS)  # fork_server_preload blocks them


def _end_with_parent() -> None:
    """End this process with its parent, for any reason.

    A fork server lives as long as its workers, because each keeps open the pipe that keeps it alive. Torch's check only
    detects that the server still lives. So a thread waits until the parent's end of this process's pipe closes. A
    fork server removes its parent's temporary folder; without one, each worker has its own folder and removes it.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if served := os.getppid() != parent.pid:  # forked by the fork server: this process ends if the server ends, too
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        mark_temporary_folder()
        remove_own_folder_at_exit()

    def follow() -> None:
        parent.join()
        if not served:
            with contextlib.suppress(OSError):
                remove_folder(multiprocessing.util.get_temp_dir())
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=follow, name="penstock-parent", daemon=True).start()
