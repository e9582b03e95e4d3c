"""Exceptions of a source: retries, error codes, and messages without secrets."""

from __future__ import annotations

import errno
import http.client
import socket
import urllib.error
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from faulty_source import FaultySource, divide_by_zero

from penstock.loaders.data.sources.data import Data
from penstock.loaders.data.sources.source_faults import call_source, name_sample
from penstock.loaders.system import retries
from penstock.loaders.system.retries import find_status
from penstock.pipelines.errors import LoaderError

SIGNED = "https://me:secret@store.example/photos/1.jpg?X-Amz-Signature=deadbeef#part"
DELAYS = [0.1, 0.5, 2.0]


def of_class(name: str, base: type[Exception] = Exception, **attributes: Any) -> Exception:
    """Imitate an exception of a package that is not installed: its class name, base and attributes."""
    error = type(name, (type("Base", (base,), {}) if base is Exception else base,), {})("it failed")
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


def of_status(status: int) -> list[Exception]:
    """Return HTTP errors as raised by urllib, requests, httpx, aiohttp and botocore."""
    answer = {"ResponseMetadata": {"HTTPStatusCode": status}}
    return [
        urllib.error.HTTPError(SIGNED, status, "no", Message(), None),
        of_class("HTTPError", OSError, response=SimpleNamespace(status_code=status)),
        of_class("HTTPStatusError", response=SimpleNamespace(status_code=status)),
        of_class("ClientResponseError", status=status),
        of_class("ClientError", response=answer),
    ]


def raised_from(cause: Exception) -> Exception:
    error = RuntimeError("cannot fetch it")
    error.__cause__ = cause
    return error


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(retries.time, "sleep", slept.append)
    return slept


def failing(*errors: Exception) -> Callable[[int], bytes]:
    """Return a read() that raises each of `errors` and then succeeds."""
    left = list(errors)

    def read(index: int) -> bytes:
        if left:
            raise left.pop(0)
        return b"%d" % index

    return read


def fault_of(error: BaseException) -> LoaderError:
    def read(index: int) -> bytes:
        raise error

    with pytest.raises(LoaderError) as caught:
        call_source(read, 0)
    return caught.value


TRANSIENT = [
    *(error for status in (408, 425, 429, 500, 502, 503, 504) for error in of_status(status)),
    *(OSError(number, "no") for number in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENETUNREACH)),
    ConnectionResetError("reset"),
    TimeoutError("timed out"),
    socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    http.client.IncompleteRead(b"123"),
    urllib.error.URLError(ConnectionRefusedError(errno.ECONNREFUSED, "refused")),
    raised_from(TimeoutError("timed out")),
    of_class("ConnectionError", OSError),  # of requests, not Python's own
    of_class("ConnectTimeout", type("TransportError", (Exception,), {})),
    of_class("ServerDisconnectedError", type("ClientConnectionError", (Exception,), {})),
    of_class("EndpointConnectionError", type("HTTPClientError", (Exception,), {})),
]
LASTING = [
    *((error, code) for status, code in ((401, "E-ACCESS"), (403, "E-ACCESS")) for error in [*of_status(status)]),
    *((error, code) for status, code in ((404, "E-MISSING"), (410, "E-MISSING")) for error in of_status(status)),
    *((error, "E-READ") for status in (400, 416, 501) for error in of_status(status)),
    (FileNotFoundError(errno.ENOENT, "no such file"), "E-MISSING"),
    (PermissionError(errno.EACCES, "denied"), "E-ACCESS"),
    (FileNotFoundError("a key of an object store"), "E-MISSING"),
    (PermissionError("a key of an object store"), "E-ACCESS"),
    (OSError(errno.EMFILE, "too many"), "E-FD"),
    (OSError(errno.ENOMEM, "no memory"), "E-MEM"),
    (OSError("cannot identify image file"), "E-READ"),
    (urllib.error.URLError("unknown url type"), "E-READ"),
    (KeyError(17), "E-READ"),
    (StopIteration("from a generator"), "E-READ"),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=repr)
def test_transient_errors_are_retried(error: Exception, delays: list[float]) -> None:
    assert call_source(failing(error, error), 7) == b"7"
    assert delays == DELAYS[:2]
    found = fault_of(error)
    assert (found.code, found.__cause__) == ("E-READ", error)
    assert "after retries" in found.fix
    assert delays == DELAYS[:2] + DELAYS


@pytest.mark.parametrize(("error", "code"), LASTING, ids=repr)
def test_lasting_errors_get_their_code_without_a_retry(error: Exception, code: str, delays: list[float]) -> None:
    found = fault_of(error)
    assert (found.code, found.__cause__, delays) == (code, error, [])
    assert "after retries" not in found.fix
    assert "folder" not in found.fix  # that is the fix for folder scans


def test_a_fault_in_the_code_of_a_source_is_reported_with_file_and_line(delays: list[float]) -> None:
    source = FaultySource(4, {2: divide_by_zero})
    with pytest.raises(LoaderError, match=r"E-READ.*cause=ZeroDivisionError: .* by zero \(.*\): fix=") as caught:
        call_source(source.read, 2)
    file, _, line = caught.value.cause.rpartition(" (")[2].rstrip(")").rpartition(":")
    assert Path(file).name == "faulty_source.py"
    assert "1 // 0" in Path(file).read_text("utf-8").splitlines()[int(line) - 1]


def test_the_reported_line_is_the_sources_also_below_a_part(delays: list[float]) -> None:
    part = Data([FaultySource(4, {2: divide_by_zero})]).take(np.array([2]))
    with pytest.raises(LoaderError, match=r"ZeroDivisionError: .*/faulty_source.py:\d+"):
        call_source(part.read, 0)


def test_the_reported_line_is_the_sources_not_the_librarys(delays: list[float]) -> None:
    def read(index: int) -> bytes:
        return http.client.HTTPConnection(1).request("GET", "/")  # type: ignore[func-returns-value, arg-type]

    with pytest.raises(LoaderError) as caught:
        call_source(read, 0)
    assert f"({__file__}:{read.__code__.co_firstlineno + 1})" in caught.value.cause


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), MemoryError("no room")], ids=repr)
def test_exceptions_unrelated_to_the_sample_pass_unchanged(error: BaseException, delays: list[float]) -> None:
    def read(index: int) -> bytes:
        raise error

    with pytest.raises(type(error)) as caught:
        call_source(read, 0)
    assert caught.value is error
    own = LoaderError("E-TRUNC", "half of it", path=b"a.jpg")
    assert fault_of(own) is own
    assert delays == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(f"404 Client Error: Not Found for url: {SIGNED}"),
        ValueError(f"bad answer of {SIGNED!r}"),
        of_class("MaxRetryError", OSError, args=("exceeded with url: /1.jpg?X-Amz-Signature=deadbeef (Caused by me)",)),
        of_class("DatabaseError", args=("no route to postgresql://me:secret@host/db?sslpassword=deadbeef",)),
    ],
)
def test_messages_contain_no_password_and_no_token(error: Exception, delays: list[float]) -> None:
    found = fault_of(error)
    for word in ("secret", "deadbeef", "Signature"):
        assert word not in str(found)
    assert "1.jpg" in found.cause or "host/db" in found.cause


def test_names_contain_no_password_and_no_token() -> None:
    source = FaultySource(4, {})
    source.path = lambda index: SIGNED.encode()  # type: ignore[method-assign]
    assert name_sample(source, 0) == b"https://store.example/photos/1.jpg"
    source.path = lambda index: "bild \udcff?.jpg"  # type: ignore[method-assign, return-value]
    assert name_sample(source, 0) == b"bild \xff?.jpg"
    source.path = lambda index: bytes(1 // 0)  # type: ignore[method-assign]
    assert name_sample(source, 0) == b""
    assert LoaderError("E-READ", "no", path=SIGNED).path == "https://store.example/photos/1.jpg"
    assert LoaderError("E-READ", "no", path=b"a?b=c#d.jpg").path == b"a?b=c#d.jpg"  # a valid file name


def test_numbers_that_are_not_a_status_are_ignored() -> None:
    assert find_status(of_class("SqlError", code=1045)) is None
    assert find_status(of_class("GrpcError", code=lambda: 503)) is None
    assert find_status(LoaderError("E-READ", "no")) is None
    assert find_status(of_class("ClientError", response={"Error": {}})) is None
