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
from typing import Any

import torch
from torch.utils.data import Dataset, get_worker_info

from penstock.loaders.batch_maker import BatchMaker, Progress
from penstock.loaders.producer import ProducerSettings
from penstock.loaders.slots import BatchSlots, Produced, WorkItem

_PR_SET_PDEATHSIG = 1
STACK_SIGNAL = signal.SIGUSR1  # makes a worker print its stack to stderr
OUTLASTED = (signal.SIGTERM, signal.SIGHUP)  # what a worker leaves to its parent, beside Ctrl-C
SENT_TO_JOBS = (*OUTLASTED, STACK_SIGNAL)  # what batch systems send to every process; SIGUSR1 if told so


class SlotDataset(Dataset[Produced]):
    """A map-style dataset whose keys are work items and whose values are messages about filled slots."""

    def __init__(self, settings: ProducerSettings, slots: BatchSlots, progress: Progress) -> None:
        self._settings, self._slots, self._progress = settings, slots, progress
        self._maker: BatchMaker | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maker": None}  # decoders are made where they are used

    def __getitem__(self, item: WorkItem) -> Produced:
        if self._maker is None:
            info = get_worker_info()
            worker, own = (info.id, True) if info else (0, False)
            self._maker = BatchMaker(self._settings, self._slots, self._progress, worker, own_process=own)
        return self._maker.make(item)


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
