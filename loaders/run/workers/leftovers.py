"""Names for multiprocessing's files that may remain after this process, and removal of those of dead processes.

If a whole job is killed (SIGKILL to a process group, a container's end), no process remains to remove the names of
its semaphores in /dev/shm and the fork server's socket in the temporary folder. So these contain their owner's name.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import process, util
from typing import Any

from penstock.loaders.system.machine import DEV_SHM


def identity() -> str:
    """Return a name of this process that is unique on this machine, forever: `boot-namespace-id-start`."""
    return f"{_boot()}-{_namespace()}-{os.getpid()}-{start_time(os.getpid())}"


def is_gone(name: str) -> bool:
    """Return whether the process with this identity() has certainly ended.

    The answer is unknown, so False, for another boot (which may be another machine) and for another container.
    """
    boot, namespace, pid, start = [*name.split("-"), "", "", "", ""][:4]
    if (boot, namespace) != (_boot(), _namespace()) or not pid.isdigit():
        return False
    return str(start_time(int(pid))) != start


def start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since boot (proc(5), field 22); -1 if it has ended."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in "ZX" else -1


def _boot() -> str:
    return _read("/proc/sys/kernel/random/boot_id").strip().replace("-", "")


def _namespace() -> str:
    """Return the number of this process's pid namespace, "" if unknown."""
    try:
        return re.sub(r"\D", "", os.readlink("/proc/self/ns/pid"))
    except OSError:
        return ""


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


_SEMAPHORE = "penstock-"  # followed by the identity of a process, and multiprocessing's suffix
_FOLDER, _SOCKET = "pymp-", "listener-"  # multiprocessing's names
_TRIES, _PAUSE_S = 20, 0.005
_MARK = "penstock-owner"  # a dangling link; its target is the identity of the folder's process


@contextlib.contextmanager
def named_semaphores() -> Iterator[None]:
    """Give semaphores that are made in the block names that contain their owner."""
    config: dict[str, object] = getattr(process.current_process(), "_config")  # noqa: B009
    before = config["semprefix"]
    config["semprefix"] = f"/{_SEMAPHORE}{identity()}"
    try:
        yield
    finally:
        config["semprefix"] = before


def mark_temporary_folder() -> None:
    """Make sure that multiprocessing's temporary folder belongs to this process, and mark it.

    The parent would remove a folder that was inherited by a fork, with a socket in it that is still needed.
    """
    config: dict[str, Any] = getattr(process.current_process(), "_config")  # noqa: B009
    mine = identity()
    if _owner(config.get("tempdir") or "") != mine:
        config.pop("tempdir", None)
        folder = util.get_temp_dir()
        with contextlib.suppress(OSError):  # a file system without links, where sweep() will not find it
            os.symlink(mine, os.path.join(folder, _MARK))


def remove_own_folder_at_exit() -> None:
    """Remove this worker's marked temporary folder when it exits, instead of multiprocessing's finalizer.

    A thread that still sends a batch may open a socket in it meanwhile. Then multiprocessing's finalizer would print a
    traceback and leave a folder without a mark.
    """
    finalizers: dict[object, object] = getattr(util, "_finalizer_registry")  # noqa: B009
    folder = util.get_temp_dir()
    for key, finalizer in list(finalizers.items()):
        if getattr(finalizer, "_callback", None) is getattr(util, "_remove_temp_dir", None):
            del finalizers[key]
    util.Finalize(None, _remove_persistently, args=(folder,), exitpriority=-100)


def _remove_persistently(folder: str) -> None:
    for _ in range(_TRIES):
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)  # the worker's own folder, including files of a data set
        if not os.path.isdir(folder):
            return
        time.sleep(_PAUSE_S)
    with contextlib.suppress(OSError):
        os.symlink(identity(), os.path.join(folder, _MARK))  # sweep() finds it later


def remove_folder(folder: str) -> None:
    """Remove a marked temporary folder if it contains only a socket. Otherwise raises OSError and keeps the mark."""
    mark, owner = os.path.join(folder, _MARK), _owner(folder)
    for name in os.listdir(folder):
        if name.startswith(_SOCKET) or name == _MARK:
            os.unlink(os.path.join(folder, name))
    try:
        os.rmdir(folder)
    except OSError:
        with contextlib.suppress(OSError):
            os.symlink(owner, mark)  # sweep() finds it later
        raise


def sweep() -> None:
    """Remove the semaphores and temporary folders of this user's killed processes. Takes a millisecond."""
    for path in _found(DEV_SHM, f"sem.{_SEMAPHORE}"):
        if is_gone(os.path.basename(path).removeprefix(f"sem.{_SEMAPHORE}").rpartition("-")[0]):
            _remove(os.unlink, path)
    for path in _found(tempfile.gettempdir(), _FOLDER):
        if is_gone(_owner(path)):
            _remove(remove_folder, path)


def _found(folder: str, prefix: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.name.startswith(prefix)]
    except OSError:
        return []


def _remove(remove: Callable[[str], object], path: str) -> None:
    with contextlib.suppress(OSError):  # it belongs to another user, or another process was faster
        if os.lstat(path).st_uid == os.geteuid():
            remove(path)


def _owner(folder: str) -> str:
    try:
        return os.readlink(os.path.join(folder, _MARK))
    except OSError:
        return ""
