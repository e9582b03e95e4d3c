"""Lets one rank of a node do what all of its ranks need, such as an index, while the others wait for the result."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from penstock.loaders.order.ranks import distributed_place
from penstock.loaders.system.durable_file import open_private
from penstock.loaders.system.json_file import decode_json
from penstock.loaders.system.progress_bar import SHOW_AFTER_S, ProgressBar
from penstock.loaders.system.saved_columns import cache_folder

# Variables of launchers that tell one run, and its restarts, from another: torchrun's, SLURM's, Open MPI's and MPICH's.
_RUN = (
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "PMI_JOBID"),
)
_TRUSTED_S = 600.0  # ranks that begin later check the data again
_POLL_S = 0.05
_MAX_BYTES = 1 << 20
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})  # some network file systems
_openings = Counter[bytes]()  # of this process, by name


class Done(NamedTuple):
    """What the ranks of a run have done.

    Attributes:
        at_s: when it was done last.
        number: how often it was done.
        of_ranks: how often each rank needed it.
    """

    at_s: float
    number: int
    of_ranks: dict[str, int]


def is_one_of_several() -> bool:
    """Return whether this process is one of several ranks, which probably open the same data."""
    try:
        return distributed_place(certain=False)[1] > 1
    except ValueError:  # a variable that is not a number: the loader reports it
        return False


@contextlib.contextmanager
def once_per_node(name: bytes | None, what: str) -> Iterator[bool]:
    """Hold the lock of the saved file `name`; yield whether another rank of this run has just made or checked it.

    Then this rank need not do it again. All ranks open the same data equally often, so the second opening of a rank
    trusts the second of another one, and not the first. If the rank that holds the lock fails or is killed, the next
    one takes over. A single process, or one without a cache folder, never waits, and does everything itself.

    what: the task, shown while waiting.
    """
    folder = cache_folder() if name is not None and is_one_of_several() else None
    if name is None or folder is None:
        yield False
        return
    path = os.path.join(folder, name.removesuffix(b".index") + b".lock")
    with contextlib.ExitStack() as stack:
        try:
            fd = open_private(path, os.O_RDWR)
            stack.callback(os.close, fd)
            _wait_for(fd, what)
            stack.callback(fcntl.flock, fd, fcntl.LOCK_UN)  # else a process forked meanwhile would hold the lock
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            yield False
            return
        run, rank, number = _name_run(), str(distributed_place(certain=False)[0]), _openings[name] + 1
        runs = _read(fd)
        done = runs.get(run)
        if done is None or done.of_ranks.get(rank, 0) >= number:  # a later run with the same variables
            done = Done(0.0, 0, {})
        is_done = done.number >= number
        yield is_done
        _openings[name] = number
        at_s, latest = (done.at_s, done.number) if is_done else (time.time(), number)
        runs[run] = Done(at_s, latest, {**done.of_ranks, rank: number})
        _write(fd, runs)


def _name_run() -> str:
    names = "\n".join(os.environ.get(name, "") for name in _RUN)
    return hashlib.blake2b(names.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _wait_for(fd: int, what: str) -> None:
    """Take the lock, which ends with the process that holds it. Raises OSError on file systems without locks."""
    with ProgressBar(f"waiting for another process that is {what}", show_after_s=SHOW_AFTER_S) as bar:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            bar.show(0)
            time.sleep(_POLL_S)


def _read(fd: int) -> dict[str, Done]:
    """Return what was done by each run, recently enough to be trusted."""
    try:
        found = decode_json(os.pread(fd, _MAX_BYTES, 0), dict[str, Done])
    except ValueError:  # new, or written by a process that was killed
        return {}
    now_s = time.time()
    return {run: done for run, done in found.items() if 0 <= now_s - done.at_s < _TRUSTED_S}


def _write(fd: int, runs: dict[str, Done]) -> None:
    with contextlib.suppress(OSError):  # a full disk: the next rank checks the data again
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(runs).encode("ascii"), 0)
