"""Requests that fail are repeated for retry_s, with growing pauses; what cannot heal is refused at once."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from range_server import CUT, USUAL, RangeServer, s3_environment, serve_ranges

from penstock.loaders import LoaderError
from penstock.loaders.data.remote import clients, object_store, obstore_client
from penstock.loaders.data.remote.access import Access
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.remote.remote_object import Part, RemoteObject
from penstock.loaders.data.requests import request_retries
from penstock.loaders.data.samples.version import Version

FOUND = RemoteObject(9, Version.of_object("a", "", 9))
URL = "http://host/a.bin"


class Clock:
    """A clock that advances only by sleep()."""

    def __init__(self) -> None:
        self.now, self.pauses = 1000.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(request_retries, "time", found)
    monkeypatch.setattr(request_retries.Deadline, "wait", lambda _, pause_s: found.sleep(pause_s) or True)
    return found


class Storage:
    """A client whose requests fail with `error` until `heals_at`."""

    def __init__(self, clock: Clock, error: Exception, heals_at: float) -> None:
        self.clock, self.error, self.heals_at, self.requests = clock, error, heals_at, 0

    def read(self, url: str, start: int, size: int, stall_s: float) -> Part:
        self.requests += 1
        self.clock.now += 0.01
        if self.clock.now < self.heals_at:
            raise self.error
        return Part(b"x" * size, FOUND)

    def plain_request(self, url: str) -> None:
        """Return None: a client without headers."""


def status_error(status: int, **headers: str) -> Exception:
    """Return an error as obstore reports a status; or, with headers, as fsspec's clients do."""
    text = f"Generic HTTP error: Error performing GET {URL} in 1ms - Server returned non-2xx status code: {status}"
    error = OSError(text) if headers else Exception(text)
    if headers:
        error.status, error.headers = status, {name.replace("_", "-"): text for name, text in headers.items()}  # type: ignore[attr-defined]
    return error


def transport_error(kind: str, words: str = "") -> Exception:
    return Exception(f"Generic HTTP error: HTTP error: error sending request\n HttpError {{\n  kind: {kind},\n {words}")


BUSY = [status_error(status) for status in (408, 425, 429, 500, 502, 503, 504, 599)]
BROKEN = [transport_error(kind) for kind in ("Timeout", "Interrupted", "Request", "Connect")]
BROKEN += [TimeoutError("dead"), ConnectionResetError("reset")]
AWAY = [transport_error("Connect", "dns error"), transport_error("Connect", "Connection refused")]


def expect_warning(retry_s: float) -> AbstractContextManager[object]:
    """Expect the warning of requests that are repeated for longer than 30 s."""
    return pytest.warns(UserWarning, match="a request to host has failed for") if retry_s > 30 else nullcontext()


@pytest.mark.parametrize("error", [*BUSY, *BROKEN, *AWAY], ids=str)
def test_an_outage_up_to_retry_s_is_survived(clock: Clock, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(object_store, "ask_pause_s", lambda client, url, error: None)
    draw = random.Random(str(error))
    for _ in range(10):
        retry_s, clock.pauses = draw.choice([30.0, 300.0]), []
        begun = clock.now
        storage = Storage(clock, error, begun + draw.uniform(0, retry_s - 26))
        monkeypatch.setattr(object_store, "client_of", lambda url, headers, one=storage: one)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            part = ObjectStore(Access(retry_s=retry_s)).read(URL, 0, 9, FOUND.version)
        assert len(warned) <= (clock.now - begun > 30)
        assert (part.data, clock.now - begun < retry_s) == (b"x" * 9, True)
        assert max(clock.pauses, default=0) <= 20
        storage.heals_at, storage.requests, begun = 1e9, 0, clock.now
        with pytest.raises(LoaderError, match="E-READ"), expect_warning(retry_s):
            ObjectStore(Access(retry_s=retry_s)).read(URL, 0, 9, FOUND.version)
        assert retry_s - 26 < clock.now - begun <= retry_s
        assert storage.requests < 100


@pytest.mark.parametrize("error", AWAY, ids=str)
def test_a_host_that_never_answered_is_refused_soon(clock: Clock, monkeypatch: pytest.MonkeyPatch, error: Any) -> None:
    """As when its name is mistyped; once it has answered, an outage is survived."""
    storage = Storage(clock, error, 1e9)
    monkeypatch.setattr(object_store, "client_of", lambda url, headers: storage)
    store, begun = ObjectStore(), clock.now
    with pytest.raises(LoaderError, match="E-READ"):
        store.read(URL, 0, 9)
    assert clock.now - begun < 10
    storage.heals_at = 0
    store.read(URL, 0, 9)
    storage.heals_at = clock.now + 200
    with expect_warning(300):
        store.read(URL, 0, 9)


def test_a_new_client_waits_for_the_name_of_a_host_of_indexed_data(clock: Clock, monkeypatch: Any) -> None:
    """As of a worker that is started during an outage; in data that is not indexed, the name is mistyped."""
    error = transport_error("Connect", "dns error: failed to lookup address information: Name or service not known")
    storage = Storage(clock, error, clock.now + 20)
    client = obstore_client.ObstoreClient("http", "host")
    monkeypatch.setattr(client, "_request", lambda stall_s, request, size: call(client, storage))
    monkeypatch.setattr(object_store, "client_of", lambda url, headers: client)
    with pytest.raises(LoaderError, match=r"E-ACCESS.*cannot be resolved \(DNS\)"):
        ObjectStore().read(URL, 0, 9)
    assert storage.requests == 1
    assert ObjectStore().read(URL, 0, 9, FOUND.version).data == b"x" * 9


def call(client: Any, storage: Storage) -> Part:
    try:
        return storage.read(URL, 0, 9, 0)
    except Exception as error:
        client._describe_itself(error)
        raise


def test_a_request_that_is_repeated_for_long_is_reported_once(clock: Clock, monkeypatch: Any) -> None:
    url = "https://me:s3cr3t@host/a.bin?Signature=s3cr3t"
    error = transport_error("Connect", f"Connection refused by {url}")
    storage = Storage(clock, error, clock.now + 200)
    monkeypatch.setattr(object_store, "client_of", lambda url, headers: storage)
    store = ObjectStore()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(2):
            store.read(url, 0, 9, FOUND.version)
            storage.heals_at = clock.now + 200
    (text,) = [str(each.message) for each in warned]
    assert text.startswith("a request to host has failed for ")
    assert "the connection was refused" in text
    assert text.endswith("repeated for 300 s (retry_s=)")
    assert "s3cr3t" not in text


LASTING = {
    **{status: status_error(status) for status in (404, 403, 401, 416)},
    "not found": FileNotFoundError("gone"),
    "certificate": transport_error("Connect", "invalid peer certificate: UnknownIssuer"),
    "of fsspec": ConnectionError("certificate verify failed: self-signed certificate"),
}


@pytest.mark.parametrize("name", LASTING)
def test_what_cannot_heal_is_refused_at_once(clock: Clock, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    storage = Storage(clock, LASTING[name], 1e9)
    monkeypatch.setattr(object_store, "client_of", lambda url, headers: storage)
    with pytest.raises(LoaderError):
        ObjectStore().read(URL, 0, 9, FOUND.version)
    assert storage.requests == 1


def test_answers_that_may_be_wrong_forever_are_repeated_a_few_times(clock: Clock, monkeypatch: Any) -> None:
    storage = Storage(clock, Exception("strange"), 1e9)
    monkeypatch.setattr(object_store, "client_of", lambda url, headers: storage)
    with pytest.raises(LoaderError, match="strange"):
        ObjectStore().read(URL, 0, 9, FOUND.version)
    assert (storage.requests, clock.now - 1000 < 10) == (5, True)


@pytest.mark.filterwarnings("ignore:a request to host has failed")
def test_the_next_attempt_uses_credentials_that_were_corrected(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the retries of a running request: files or variables changed, so there is another client."""
    expired, right = Storage(clock, status_error(403), 1e9), Storage(clock, status_error(500), 1100)
    for first in (expired, Storage(clock, status_error(503), 1e9)):

        def client_of(url: str, headers: object, one: Storage = first) -> Storage:
            return right if one.requests else one

        monkeypatch.setattr(object_store, "ask_pause_s", lambda client, url, error: None)
        monkeypatch.setattr(object_store, "client_of", client_of)
        assert ObjectStore().read(URL, 0, 9, FOUND.version).data == b"x" * 9
        assert first.requests == 1
    assert right.requests > 2


# ---- Retry-After ----


@pytest.mark.parametrize("form", ["seconds", "date", "date of a wrong clock"])
def test_the_pause_that_a_server_asks_for_is_kept(clock: Clock, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    asked = {
        "seconds": {"Retry_After": "70"},
        "date": {"Retry_After": formatdate(1070, usegmt=True)},
        "date of a wrong clock": {"Retry_After": formatdate(5070, usegmt=True), "Date": formatdate(5000, usegmt=True)},
    }[form]
    storage = Storage(clock, status_error(429, **asked), 1050)
    monkeypatch.setattr(object_store, "client_of", lambda url, headers: storage)
    ObjectStore().read(URL, 0, 9, FOUND.version)
    assert (storage.requests, 69 <= clock.pauses[0] <= 77.1) == (2, True)


def test_a_server_that_asks_for_too_long_a_pause_is_reported(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(clock, status_error(503, Retry_After="3601"), 1e9)
    monkeypatch.setattr(object_store, "client_of", lambda url, headers: storage)
    with pytest.raises(LoaderError, match=r"asks to wait 3,\d\d\d s") as caught:
        ObjectStore().read(URL, 0, 9, FOUND.version)
    assert (storage.requests, "retry_s=" in caught.value.fix) == (1, True)


def test_a_server_is_asked_for_the_pause_that_obstore_does_not_report(
    clock: Clock, server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a bucket, and once for all requests that fail at the same time."""
    for name, value in s3_environment(server.url).items():
        monkeypatch.setenv(name, value)
    for url in (f"{server.url}/b/a.bin", "s3://b/a.bin"):
        store, clock.pauses = ObjectStore(), []
        found = store.stat(url)
        until = clock.now + 40
        server.error_headers = {"Retry-After": "45"}
        server.fault = lambda path, number, until=until: 503 if clock.now < until else USUAL
        before = server.requests["all"]
        assert bytes(store.read(url, 0, 5, found.version).data) == b"01234"
        assert (server.requests["all"] - before, 45 <= clock.pauses[0] <= 49.5) == (3, True)


# ---- listings ----


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.bin").write_bytes(b"0123456789")
    with serve_ranges(tmp_path) as served:
        clients.open_client.cache_clear()
        yield served
    clients.open_client.cache_clear()


@pytest.fixture
def bucket(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> RangeServer:
    """A bucket with objects in pages of 7, that counts requests for pages."""
    for name, value in s3_environment(server.url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(request_retries, "_LONGEST_PAUSE_S", 0.002)
    draw = random.Random(3)
    for number in range(120):
        folder = server.root / "b" / draw.choice(["x", "y/z", "ü", "y", "x y"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{draw.choice('aé-_+😀Z')}{number}").write_bytes(b"1" * draw.randrange(1, 4))
    for number in range(30):
        (server.root / "b" / f"f{number}").mkdir()
        (server.root / "b" / f"f{number}" / "0").write_bytes(b"1")
    server.page = 7
    short = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2)}
    monkeypatch.setattr(obstore_client, "_PAGE_RETRIES", {"max_retries": 20, "backoff": short})
    monkeypatch.setattr(obstore_client, "_PAGE", 7)
    return server


@pytest.mark.parametrize("url", ["s3://b/", "s3://b/x", "s3://b/y/", "s3://b/none/"])
def test_pages_of_a_listing_that_fail_are_repeated_alone(bucket: RangeServer, url: str) -> None:
    bucket.page = 1000
    expected = ObjectStore().list(url)
    bucket.page, draw = 7, random.Random(url)
    before = bucket.requests["all"]
    failed = 0

    def fail(path: str, number: int) -> int:
        nonlocal failed
        fault = draw.choice([503, 500, CUT, USUAL, USUAL, USUAL])
        failed += fault != USUAL
        return fault

    bucket.fault = fail
    assert ObjectStore().list(url) == expected
    pages = max(1, -(-len(expected) // 7)) if url != "s3://b/x" else 40
    assert bucket.requests["all"] - before <= pages + 2 * failed + 1  # the pages before are not listed again


def test_a_listing_in_no_order_begins_anew_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot continue after a name: some storages list in no order, and then names would be missing."""
    names = [f"s3://b/{name}" for name in "cafdbe"]
    failures = [True, False]

    class Client:
        def list_pages(self, url: str, stall_s: float, after: str, *, is_repeated: bool) -> Iterator[list[Any]]:
            for at in range(0, 6, 2):
                if at == 4 and failures and failures.pop(0):
                    raise TimeoutError("busy")
                yield [(name, FOUND) for name in names[at : at + 2] if name > after]

        def choose_named(self, url: str, listed: Any) -> Any:
            return listed

    monkeypatch.setattr(request_retries, "_LONGEST_PAUSE_S", 0.001)
    client = Client()
    monkeypatch.setattr(object_store, "client_of", lambda url, headers: client)
    assert list(ObjectStore().list("s3://b/")) == sorted(names)


def test_pages_of_the_folders_of_a_bucket_that_fail_are_repeated(bucket: RangeServer) -> None:
    bucket.page = 1000
    expected = ObjectStore().list_folder("s3://b/")
    bucket.page, draw = 3, random.Random(1)
    bucket.fault = lambda path, number: draw.choice([503, USUAL])
    assert ObjectStore().list_folder("s3://b/") == expected
