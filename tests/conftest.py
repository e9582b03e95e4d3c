"""Rules for every test: user folders are temporary, and a GPU test without a GPU fails instead of being skipped."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import psutil
import pytest
from forked_commands import Commands
from mounts import own_shm
from processes import note_leftovers

# Several processes run tests at the same time. Torch's threads wait for each other in a loop, which would take the
# processors from others. Torch reads this variable when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_stderr, _limit_s = 2, 0.0


@pytest.hookimpl(trylast=True)  # pytest-timeout has its own limit by then
def pytest_configure(config: pytest.Config) -> None:
    """Limit the silence of this process, and a little later that of xdist's controller, which sees every test."""
    global _stderr, _limit_s
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # a shell's background job, where tests could not be interrupted
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    _stderr = os.dup(2)  # before the output of tests is captured
    faulthandler.register(signal.SIGUSR2, file=_stderr)  # also in forked workers
    is_controller = bool(getattr(config.option, "dist", "no") != "no") and not hasattr(config, "workerinput")
    config.option.loadscopereorder = False  # pytest_collection_modifyitems sets the order
    _limit_s = (getattr(config, "_env_timeout", None) or 0.0) * (1.2 if is_controller else 1.1)
    # A forked child would wait for the limit's thread, which it does not have, when it cancels the limit or exits.
    os.register_at_fork(before=faulthandler.cancel_dump_traceback_later, after_in_parent=_end_unless_something_happens)


def _end_unless_something_happens() -> None:
    """Print every stack and exit with 1 after a while: pytest-timeout acts once, and its exception can be caught.

    The last call covers the end of the session and of the interpreter.
    """
    if _limit_s:
        faulthandler.dump_traceback_later(_limit_s, exit=True, file=_stderr)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m gpu`, import only files with GPU tests: a GPU machine may lack packages that other tests import."""
    if config.option.markexpr != "gpu" or collection_path.name in ("conftest.py", "__init__.py"):
        return None
    files = [collection_path] if collection_path.is_file() else collection_path.rglob("test_*.py")
    return None if any("mark.gpu" in file.read_text("utf-8") for file in files) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Make xdist start with files of slow tests, then with files of many: otherwise processes wait at the end."""
    if hasattr(config, "workerinput"):
        num_tests = Counter(item.path for item in items)
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: (item.path not in slow, -num_tests[item.path]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Hide imported and collected objects from the garbage collector, now and later: visiting them takes a second."""
    gc.disable()
    done = yield
    gc.freeze()
    gc.enable()
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Hide objects that the tests of a file leave, such as modules: many tests collect garbage."""
    done = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return done


def pytest_runtest_logstart() -> None:
    """Restart the limit."""
    _end_unless_something_happens()


def pytest_runtest_logreport() -> None:
    """Restart the limit."""
    _end_unless_something_happens()


@pytest.hookimpl(trylast=True)
def pytest_exception_interact() -> None:
    """Restore the limit, which pytest removes when a test raises; print the stacks of its forked workers."""
    _end_unless_something_happens()
    for worker in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if _prints_stacks(worker.pid):
                worker.send_signal(signal.SIGUSR2)


def _prints_stacks(pid: int) -> bool:
    """Return whether a process handles SIGUSR2, which would kill any other."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has ended
        return False
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:")).split()[1]
    return bool(int(caught, 16) >> (signal.SIGUSR2 - 1) & 1)


@pytest.fixture(scope="session", autouse=True)
def own_user_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Point the user's cache and configuration folders to a temporary folder, also for subprocesses.

    Otherwise a folder index or a profile of an earlier run could decide whether a test passes.
    """
    folder = tmp_path_factory.mktemp("user")
    ours = {
        name: str(folder / name) for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
    }
    theirs = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    yield
    for name, value in theirs.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture(scope="session")
def commands(own_user_folders: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Run `penstock` in processes that have imported everything and have a private /dev/shm."""
    with Commands(tmp_path_factory.mktemp("commands"), own_shm()) as server:
        yield server


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note leftovers of earlier tests; fail a GPU test without a GPU, since it runs only on request (`-m gpu`)."""
    if {"threads", "worker_pids", "child_pids"} & vars(item.module).keys():
        note_leftovers()  # this takes a millisecond or two
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.fail("needs a CUDA device, and torch sees none", pytrace=False)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run two processes per processor, at most four: many tests wait, for processes or for a second."""
    return min(4, 2 * (os.cpu_count() or 1))
