"""Receipt of messages from worker processes, which stops waiting if the rest of a message does not arrive."""

from __future__ import annotations

import functools
import io
import os
import pickle
import select
import socket
import struct
import threading
from collections.abc import Callable
from multiprocessing import connection, process, reduction, resource_sharer
from typing import Any

Stalled = Callable[[int | None], None]  # called with the process id of the awaited worker, if it is known


def watch_connection(link: Any, poll_s: float, stalled: Callable[[], None]) -> None:
    """Make the connection `link` call `stalled`, which may raise, every `poll_s` without data of a message.

    If the sender is dead or stopped, the rest of its message never arrives. The pipe does not reach its end of file,
    because the other workers keep it open.
    """
    descriptor = link.fileno()

    def receive(size: int) -> io.BytesIO:
        received = io.BytesIO()
        while received.tell() < size:
            _wait(descriptor, poll_s, stalled)
            chunk = os.read(descriptor, size - received.tell())
            if not chunk:
                raise EOFError("all worker processes have ended")
            received.write(chunk)
        return received

    link._recv = receive


def watched_get(results: Any, poll_s: float, stalled: Stalled) -> Callable[[], object]:
    """Return a function that receives the next message of the queue `results`, for the queue's only reader.

    It calls `stalled`, which may raise, every `poll_s` without data of the message. Besides the message's bytes, a
    thread of the worker sends the memory descriptor of each tensor when this process requests it. It cannot send it
    while the worker is stopped, or while another thread of it holds the interpreter lock.

    Raises:
        EOFError: all workers have ended.
        OSError: the worker that sent the message has ended.
    """
    reader, taken = results._reader, results._sem.release
    watch_connection(reader, poll_s, functools.partial(stalled, None))

    def get() -> object:
        message = io.BytesIO(reader.recv_bytes())
        taken()
        _this_thread.waits = poll_s, stalled
        return _Unpickler(message).load()

    return get


class _Descriptor(resource_sharer.DupFd):
    """A descriptor from another process, received with the same limits as a message."""

    _id: tuple[object, int]  # set by multiprocessing: the address of the other process's thread, and a number

    def detach(self) -> int:
        """Return a descriptor that belongs to this process."""
        poll_s, stalled = _this_thread.waits
        address, number = self._id
        link = connection.SocketClient(address)  # type: ignore[attr-defined]
        with link:
            owed = functools.partial(_owed_by_peer, link.fileno(), stalled)
            watch_connection(link, poll_s, owed)
            key = process.current_process().authkey
            connection.answer_challenge(link, key)
            connection.deliver_challenge(link, key)
            link.send((number, os.getpid()))
            _wait(link.fileno(), poll_s, owed)
            descriptor: int = reduction.recv_handle(link)
            return descriptor


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        found = super().find_class(module, name)
        return _Descriptor if found is resource_sharer.DupFd else found


_this_thread = threading.local()


def _owed_by_peer(descriptor: int, stalled: Stalled) -> None:
    with socket.fromfd(descriptor, socket.AF_UNIX, socket.SOCK_STREAM) as link:
        pid, _, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    stalled(pid)


def _wait(descriptor: int, poll_s: float, stalled: Callable[[], None]) -> None:
    """Wait until there is data to read, or the end of file."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while not poll.poll(poll_s * 1000):
        stalled()
