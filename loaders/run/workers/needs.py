"""Checks of the machine's resources before a loader starts workers: loaders refuse, the doctor advises."""

from __future__ import annotations

import os
import tempfile
from multiprocessing import current_process, util
from typing import NamedTuple

from penstock.loaders.run.workers.launch import our_server_runs
from penstock.loaders.system.machine import DEV_SHM, ensure_descriptors, ensure_memory, process_headroom
from penstock.loaders.system.real_path import real_path
from penstock.pipelines.errors import LoaderError

# Unshared memory, measured with photos of 470x400 pixels: of a fork server that has imported torch (with its resource
# tracker), and of a worker in addition to the memory from its server.
SERVER_BYTES, WORKER_BYTES = 156 << 20, 58 << 20
_THREADS_A_WORKER, _THREADS_OF_OTHERS = 3, 4  # main thread, parent's watcher, sender; server, tracker...
SEMAPHORES = "semaphores of the workers' queues"
_PAGE = 4096  # a semaphore uses one
_LONGEST_SOCKET = 107  # bytes of a Unix socket's path
_SOCKET_NAME = len("/pymp-xxxxxxxx/listener-xxxxxxxx")
_TEMPORARY_FIX = "set a writable folder on a local disk: export TMPDIR=/tmp"


class Needs(NamedTuple):
    """The resources that a loader needs.

    Attributes:
        slot_bytes: memory of its batches, which its worker processes share.
        own_bytes: other memory, such as for normalised batches, and for crops before transforms.
        processes: number of worker processes.
        descriptors: open files of the consumer.
        start_method: how the processes are started.
    """

    slot_bytes: int = 0
    own_bytes: int = 0
    processes: int = 0
    descriptors: int = 0
    start_method: str = ""

    @property
    def semaphore_bytes(self) -> int:
        """Bytes in /dev/shm for the queues between the processes: three semaphores each, and eight shared ones."""
        return _PAGE * (3 * self.processes + 8) if self.processes else 0

    @property
    def total_bytes(self) -> int:
        """Minimum memory in total."""
        return self.slot_bytes + self.own_bytes + self.process_bytes

    @property
    def process_bytes(self) -> int:
        """Minimum memory of the worker processes themselves, without a fork server that already runs."""
        if not self.processes or self.start_method == "fork":
            return 0
        if self.start_method == "spawn":
            return self.processes * SERVER_BYTES
        return self.processes * WORKER_BYTES + (0 if our_server_runs() else SERVER_BYTES)


def ensure(needs: Needs, **where: object) -> None:
    """Raise LoaderError E-FD, E-SHM, E-MEM or E-NOSPC with a fix for a missing resource; may increase soft limits.

    It only makes a few system calls and reserves nothing. where: fields of the error, such as backend and rank.
    """
    try:
        ensure_descriptors(needs.descriptors)
        if needs.processes:
            ensure_children()
            ensure_dev_shm(needs.semaphore_bytes, SEMAPHORES)
            ensure_temporary_folder()
            ensure_processes(needs)
        ensure_batches(needs)
    except LoaderError as error:
        raise error.locate(**where) from None


def ensure_batches(needs: Needs) -> None:
    """Raise LoaderError E-SHM or E-MEM if the batches and the processes that make them do not fit into memory."""
    if needs.slot_bytes:
        ensure_memory(needs.slot_bytes, "batch slots", "E-SHM" if needs.processes else "E-MEM")
    if needs.total_bytes > needs.slot_bytes:
        processes = f" and {needs.processes} worker process{'es' * (needs.processes != 1)}" * (needs.processes > 0)
        ensure_memory(needs.total_bytes, f"batches{processes}, at least")


def ensure_children() -> None:
    """Raise LoaderError E-MISUSE if multiprocessing does not allow this process to start other processes."""
    if current_process().daemon:
        fix = "pass workers=0 here (num_workers=0 to DataLoader), or start this process with daemon=False"
        raise LoaderError("E-MISUSE", "a daemonic process may not start worker processes", fix=fix)
    real_path(".")  # their working directory


def ensure_processes(needs: Needs) -> None:
    """Raise LoaderError E-MEM if the control group does not allow the required processes and threads."""
    have = process_headroom()
    needed = needs.processes * _THREADS_A_WORKER + _THREADS_OF_OTHERS if needs.processes else 0
    if have is not None and needed > have:
        fix = f"lower workers, or allow more processes (docker --pids-limit {max(256, 4 * needed)})"
        raise LoaderError("E-MEM", f"processes and threads: need={needed} have={have}", fix=fix)


def ensure_dev_shm(num_bytes: int, purpose: str) -> int:
    """Return the free bytes in /dev/shm. Raises LoaderError E-SHM if there are too few, or it is not writable."""
    wanted = f"{max(64, 1 << (-(-num_bytes >> 20) or 1).bit_length())}m"
    try:
        status = os.statvfs(DEV_SHM)
    except OSError as error:
        fix = f"mount it: mount -t tmpfs -o size={wanted} tmpfs {DEV_SHM} (docker --shm-size={wanted})"
        raise LoaderError("E-SHM", f"{purpose}: {DEV_SHM}: {error.strerror}", fix=fix) from None
    if status.f_flag & os.ST_RDONLY or not os.access(DEV_SHM, os.W_OK | os.X_OK):
        fix = f"make it writable: mount -o remount,rw,mode=1777 {DEV_SHM}"
        raise LoaderError("E-SHM", f"{purpose}: {DEV_SHM} cannot be written", fix=fix)
    free = status.f_bavail * status.f_frsize
    if num_bytes > free:
        fix = f"mount -o remount,size={wanted} {DEV_SHM} (docker --shm-size={wanted}), or lower workers or batch_size"
        raise LoaderError("E-SHM", f"{purpose}: {DEV_SHM} need={num_bytes:,} have={free:,} bytes", fix=fix)
    return free


def ensure_temporary_folder() -> str:
    """Return the folder for temporary files. Raises LoaderError E-NOSPC if it is missing or too long for a socket."""
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError as error:
        raise LoaderError("E-NOSPC", f"no temporary folder: {error.strerror}", fix=_TEMPORARY_FIX) from None
    spare = _LONGEST_SOCKET - len(os.fsencode(folder)) - _SOCKET_NAME
    if spare < 0 and not hasattr(util, "_get_base_temp_dir"):  # newer Pythons use another folder automatically
        cause = f"the path of the temporary folder is {-spare} bytes too long for the fork server's socket"
        raise LoaderError("E-NOSPC", cause, fix=_TEMPORARY_FIX, path=folder)
    return folder
