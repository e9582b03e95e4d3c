"""Retries after temporary failures, with one table of errors for files, servers and users' sources."""

from __future__ import annotations

import errno
import itertools
import socket
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

RETRY_DELAYS_S = (0.1, 0.5, 2.0)
# Errors of network storage and resolvers. A missing file or permission is permanent.
TRANSIENT = frozenset(
    {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.ENETDOWN, errno.ENETUNREACH}
    | {errno.EHOSTDOWN, errno.EHOSTUNREACH, socket.EAI_AGAIN}
)
# HTTP: a time limit, a quota, a server that restarts; not an operation that the server does not support.
HEALING_STATUS = frozenset({408, 425, 429, *range(500, 600)}) - {501, 505}
# Classes, or their bases, by name, because their packages may not be installed. In this order: Python; http.client;
# requests; urllib3; httpx; aiohttp; botocore.
_HEALING_CLASSES = frozenset(
    {"ConnectionError", "TimeoutError", "HTTPException", "Timeout", "ChunkedEncodingError", "ProtocolError"}
    | {"TransportError", "ClientConnectionError", "ClientPayloadError", "HTTPClientError"}
)


def can_heal(error: BaseException) -> bool:
    """Return whether the call that raised `error` may succeed a moment later."""
    status = find_status(error)
    if status is not None:
        return status in HEALING_STATUS
    return any(
        (isinstance(cause, OSError) and cause.errno in TRANSIENT)
        or any(kind.__name__ in _HEALING_CLASSES for kind in type(cause).__mro__)
        for cause in _chain(error)
    )


def find_status(error: BaseException) -> int | None:
    """Return the HTTP status in `error`, its response or its causes; None without one."""
    for cause in _chain(error):
        response = getattr(cause, "response", None)
        if isinstance(response, dict):  # botocore
            response = response.get("ResponseMetadata")
            found = response.get("HTTPStatusCode") if isinstance(response, dict) else None
            if isinstance(found, int):
                return found
        for holder in (cause, response):
            for name in ("status", "status_code", "code"):
                found = getattr(holder, name, None)
                if isinstance(found, int) and 400 <= found < 600:
                    return found
    return None


def find_headers(error: BaseException) -> dict[str, str]:
    """Return the headers of the answer in `error`, its response or its causes, with names in lower case."""
    for cause in _chain(error):
        for holder in (cause, getattr(cause, "response", None)):
            headers = getattr(holder, "headers", None)
            if headers is not None and hasattr(headers, "items"):
                return {str(name).lower(): str(value) for name, value in headers.items()}
    return {}


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and its causes; urllib and urllib3 call a cause `reason`."""
    found: object = error
    for _ in range(8):
        if not isinstance(found, BaseException):
            return
        yield found
        reason = getattr(found, "reason", None)
        found = reason if isinstance(reason, BaseException) else found.__cause__


def short_pause(number: int, error: Exception) -> float | None:
    """Return one of RETRY_DELAYS_S after a temporary error; None otherwise, or after too many attempts."""
    return RETRY_DELAYS_S[number] if number < len(RETRY_DELAYS_S) and can_heal(error) else None


def with_retries(
    call: Callable[[], T],
    on_retry: Callable[[], None] | None = None,
    pause: Callable[[int, Exception], float | None] = short_pause,
) -> T:
    """Return the result of `call`; repeat it after an error while `pause` returns seconds to wait.

    pause: (number of attempts before the failed one, its error) -> seconds, or None.
    """
    for number in itertools.count():
        try:
            return call()
        except Exception as error:
            pause_s = pause(number, error)
            if pause_s is None:
                raise
        if on_retry is not None:
            on_retry()
        time.sleep(pause_s)
    raise AssertionError("unreachable")
