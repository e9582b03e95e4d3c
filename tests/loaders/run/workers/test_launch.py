"""What started processes learn of the user's script, and the fork server."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from multiprocessing import forkserver, process, spawn
from pathlib import Path

import psutil
import pytest
from forked_child import ForkedChild
from forked_commands import Commands
from processes import eventually

from penstock.loaders.run.workers.launch import hidden_main, start_fork_server, worker_context


def names_main() -> bool:
    return any(key.startswith("init_main") for key in spawn.get_preparation_data("a process"))


def test_the_script_is_hidden_per_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders that are started in two threads at once: the first to finish must not expose the script to the other."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "script.py", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None, raising=False)
    entered, left = threading.Event(), threading.Event()
    seen: list[bool] = []

    def begin_another() -> None:
        with hidden_main():
            entered.set()
            left.wait(60)
            seen.append(names_main())
        seen.append(names_main())

    thread = threading.Thread(target=begin_another)
    with hidden_main():
        thread.start()
        assert entered.wait(60)
        with hidden_main():
            assert not names_main()
        assert not names_main()
    assert names_main()
    left.set()
    thread.join()
    assert seen == [False, True]


def test_the_wait_for_a_fork_server_happens_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is started to wait: a signal at that moment would end the server with a traceback."""
    worker_context("forkserver")
    monkeypatch.setattr(forkserver, "connect_to_new_process", lambda fds: pytest.fail("a process was started"))
    worker_context("forkserver")


def test_ctrl_c_during_the_wait_for_the_fork_server_prints_nothing(tmp_path: Path, commands: Commands) -> None:
    """Ctrl-C reaches all processes of a terminal; this one is interrupted after the package has set its signals."""
    (tmp_path / "interrupted.py").write_text(
        textwrap.dedent(f"""
            import multiprocessing.util, os

            def info(message, *arguments):
                if message == "child process calling self.run()":
                    os.kill(os.getpid(), {signal.SIGINT.value})

            multiprocessing.util.info = info
        """)
    )
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import multiprocessing
            from penstock.loaders.run.workers.launch import hidden_main, worker_context
            multiprocessing.set_forkserver_preload(["interrupted"])
            process = worker_context("forkserver").Process(target=print, args=("a user's process",))
            with hidden_main():
                process.start()
            process.join()
        """)
    )
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    code, command = commands.run(script=program, environment={"PYTHONPATH": path})
    assert code == 0, command.errors
    assert command.errors.count("Traceback") == 1  # only from the user's own process, which Python interrupts


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("before", "ending"),
    [(lambda: None, signal.SIGKILL), (forkserver.ensure_running, signal.SIGKILL), (start_fork_server, 0)],
    ids=["none before", "another library's", "ours"],
)
def test_an_interrupted_wait_ends_its_fork_server(
    before: Callable[[], None], ending: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server continues its imports for seconds; an existing one may have workers."""

    def interrupt(process: object, timeout: object = None) -> None:
        raise KeyboardInterrupt

    def wait(_: object) -> int:
        process.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]  # the parent's
        before()
        process.BaseProcess.join = interrupt  # type: ignore[method-assign]
        with contextlib.suppress(KeyboardInterrupt):
            worker_context("forkserver")
        server: int = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        ended, deadline = (0, 0), time.monotonic() + (60 if ending else 0.5)
        while not ended[0] and time.monotonic() < deadline:
            ended = os.waitpid(server, os.WNOHANG)
            time.sleep(0.01)
        return ended[1]

    with tempfile.TemporaryDirectory() as folder:  # a short name, because of the length limit of sockets
        monkeypatch.setattr(tempfile, "tempdir", folder)
        assert ForkedChild(wait).result() == ending


def test_a_fork_server_of_another_library_is_left_alone(tmp_path: Path, commands: Commands) -> None:
    """Signals that batch systems send to each process would end that server and our workers with it."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import multiprocessing, os, signal, time
            from multiprocessing import forkserver
            from penstock.loaders.run.workers.launch import hidden_main, worker_context

            servers, processes = [], []
            for context in (multiprocessing.get_context("forkserver"), worker_context):
                context = context("forkserver") if callable(context) else context
                processes.append(context.Process(target=time.sleep, args=(1000,)))
                with hidden_main():
                    processes[-1].start()
                servers.append(forkserver._forkserver._forkserver_pid)
            worker_context("forkserver")
            assert forkserver._forkserver._forkserver_pid == servers[1]
            os.kill(servers[1], signal.SIGTERM)
            for process in processes:
                process.kill()
                process.join()
            child = os.fork()
            if child:
                print(*(process.exitcode for process in processes), *servers, child)
            else:
                time.sleep(1000)
        """)
    )
    code, command = commands.run(script=program)
    assert code == 0, command.errors
    theirs, ours, *servers, child = map(int, command.output.split())
    try:
        assert (theirs, ours) == (-signal.SIGKILL, -signal.SIGKILL)
        assert servers[0] != servers[1]
        assert eventually(lambda: not any(map(psutil.pid_exists, servers)))
    finally:
        os.kill(child, signal.SIGKILL)


def test_exit_handlers_of_preloaded_modules_run(tmp_path: Path, commands: Commands) -> None:
    """Our fork server ends before Python would flush its output."""
    (tmp_path / "preloaded.py").write_text("import atexit\natexit.register(print, 'a handler of the server')\n")
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import multiprocessing
            from penstock.loaders.run.workers.launch import worker_context
            multiprocessing.set_forkserver_preload(["preloaded"])
            worker_context("forkserver")
        """)
    )
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    code, command = commands.run(script=program, environment={"PYTHONPATH": path, "PYTHONUNBUFFERED": ""})
    assert code == 0, command.errors
    assert eventually(lambda: command.output == "a handler of the server\n"), (command.output, command.errors)
    assert command.errors == ""


def test_a_fork_server_cleans_up_after_its_parent(tmp_path: Path, commands: Commands) -> None:
    """The kernel closes the files of a killed process before its children learn of its death."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import os, time
            from multiprocessing import forkserver
            from penstock.loaders.run.workers.launch import worker_context

            worker_context("forkserver")
            os.close(forkserver._forkserver._forkserver_alive_fd)
            print("closed", flush=True)
            time.sleep(600)
        """)
    )
    with commands.running(script=program) as running:
        assert eventually(lambda: bool(running.output), 60), running.errors
        time.sleep(0.5)  # for a server that does not wait
        assert "server" in running.roles().values()
        running.end(signal.SIGKILL, group=False)
        assert running.leaves_nothing(), running.left_behind()
