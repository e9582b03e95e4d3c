"""Servers that are away, slow, wrong or changed: a loader waits, or ends with one helpful line."""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from forked_commands import Commands
from range_server import CUT, HANG, TRICKLE, USUAL, WHOLE, RangeServer, serve_ranges
from remote_photos import PARTS, open_loader, open_remote, write_containers
from served_rows import Row, serve

from penstock.loaders import LoaderError, concat
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.remote import curl_requests, fetcher, object_store, url_patterns
from penstock.loaders.data.remote.fetcher import Fetcher, Range
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.remote.remote_object import Part
from penstock.loaders.data.requests import request_retries, time_limits
from penstock.loaders.data.requests.pace import Pace
from penstock.loaders.data.samples.version import Version
from penstock.pipelines.native.rows import ROW

NUM_PHOTOS = 37


@pytest.fixture(scope="module")
def expected(photos: ImageFolder) -> list[Row]:
    with open_loader(photos) as loader:
        return serve(loader)


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_retries, "_LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(curl_requests, "STALLED_S", 1)


def test_a_loader_waits_for_a_server_that_returns(
    tmp_path: Path, photos: ImageFolder, expected: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections are refused from the second batch on, until a new server listens on the port."""
    monkeypatch.setattr(request_retries, "_LONGEST_PAUSE_S", 0.5)
    write_containers(tmp_path, photos)
    with ExitStack() as first, ExitStack() as second:
        server = first.enter_context(serve_ranges(tmp_path))
        source = open_remote(server, photos, bytes_ahead=1)
        loader = first.enter_context(open_loader(source, workers=0))
        serve(loader, 1)
        server.fault = lambda path, number: CUT  # of connections that are open already
        port = int(server.url.rpartition(":")[2])
        server.stop()

        def restart() -> None:
            deadline = time.monotonic() + 60
            while not source.store.retries and time.monotonic() < deadline:  # until the first retry
                time.sleep(0.02)
            second.enter_context(serve_ranges(tmp_path, port))

        thread = threading.Thread(target=restart)
        thread.start()
        assert serve(loader) == expected
        thread.join()
    assert source.store.retries > 0


def test_a_server_that_stays_away_is_reported_in_one_line(server: RangeServer, photos: ImageFolder) -> None:
    source = open_remote(server, photos, retry_s=0)
    server.fault = lambda path, number: CUT  # of connections that are open already
    server.stop()
    with (
        pytest.raises(LoaderError, match="check the network and the storage") as caught,
        open_loader(source, workers_are="threads") as loader,
    ):
        serve(loader)
    assert caught.value.code == "E-READ"
    assert "\n" not in str(caught.value)


def test_the_watchdog_waits_longer_than_retries_unless_it_is_given(server: RangeServer, photos: ImageFolder) -> None:
    for source, given, expected in (
        (photos, {}, 300),
        (open_remote(server, photos, retry_s=0), {}, 300),
        (open_remote(server, photos), {}, 360),
        (concat([photos, open_remote(server, photos, retry_s=900)]), {}, 960),
        (open_remote(server, photos), {"watchdog_s": 70}, 70),
    ):
        for kind in ("processes", "threads"):
            with open_loader(source, workers=1, workers_are=kind, **given) as loader:
                assert loader._engine._options.watchdog_s == expected  # type: ignore[union-attr]


def test_of_many_requests_to_a_dead_storage_the_first_error_is_reported(
    server: RangeServer, photos: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after hours, because few requests are made at once: a worker would seem to be hung."""
    source, taken = open_remote(server, photos, requests=1, bytes_ahead=1), list[int]()

    def take(self: Fetcher, sample: int) -> memoryview:
        taken.append(sample)
        raise LoaderError("E-READ" if sample > 1 else "E-CHANGED", "gone")

    monkeypatch.setattr(Fetcher, "take", take)
    source.locate(np.arange(8), np.zeros(8, ROW))
    assert taken == [0, 1, 2]


@pytest.fixture
def short_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts without data end after 0.4 s, the second one after 0.8 s; those with data after 0.5 s more."""
    for name, limit_s in (("STALL_S", 0.4), ("LONG_STALL_S", 0.8), ("LAST_STALL_S", 0.2)):
        monkeypatch.setattr(request_retries, name, limit_s)
    monkeypatch.setattr(time_limits, "_LEAST_BYTES_PER_S", 1 << 20)


@pytest.mark.usefixtures("short_deadline")
def test_a_body_that_trickles_is_ended(server: RangeServer, photos: ImageFolder, expected: list[Row]) -> None:
    source = open_remote(server, photos)
    server.fault = lambda path, number: TRICKLE if number == PARTS + 2 else USUAL
    with open_loader(source, workers_are="threads") as loader:
        assert serve(loader) == expected  # the fault occurs once: the retry succeeds
    assert source.store.retries == 1
    server.fault = lambda path, number: TRICKLE if path == "/1.bin" else USUAL
    source = open_remote(server, photos, requests=PARTS, retry_s=0)
    with pytest.raises(LoaderError) as caught, open_loader(source, workers_are="threads") as loader:
        serve(loader)
    assert caught.value.code == "E-READ"
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("short_deadline")
def test_a_server_that_never_answers_is_reported_in_one_line(server: RangeServer, photos: ImageFolder) -> None:
    """The samples of one request share its deadline: they are not requested again one by one."""
    source = open_remote(server, photos, bytes_ahead=1, retry_s=1)
    before = server.requests["all"]
    server.fault = lambda path, number: HANG
    with (
        pytest.raises(LoaderError, match=r"timed out|error sending request") as caught,
        open_loader(source, workers=0, shuffle=False, batch_size=12) as loader,
    ):
        serve(loader, 1)
    assert caught.value.code == "E-READ"
    assert "\n" not in str(caught.value)
    assert PARTS < server.requests["all"] - before <= 3 * PARTS  # neighbours share a request, repeated twice


class Clock:
    """A clock that advances only by sleep() in new threads: those of other tests may still repeat requests."""

    def __init__(self) -> None:
        self.now, self._others = 1000.0, set(threading.enumerate()) - {threading.current_thread()}

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if threading.current_thread() in self._others:
            time.sleep(0.1)
        else:
            self.now += seconds


class DeadClient:
    """A client whose requests fail after `seconds`, or at their time limit if it is shorter."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds, self.requests = clock, seconds, 0

    def read(self, url: str, start: int, size: int, stall_s: float) -> Part:
        self.clock.sleep(min(self.seconds, stall_s))
        self.requests += 1
        raise TimeoutError("dead")


@pytest.mark.filterwarnings("ignore:a request to")
@pytest.mark.parametrize("seconds", [1e9, 20.0, 1.0])
def test_all_attempts_at_a_sample_and_its_neighbours_end_within_retry_s(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.undo()  # use the real delays
    clock = Clock()
    client = DeadClient(clock, seconds)
    monkeypatch.setattr(request_retries, "time", clock)
    monkeypatch.setattr(request_retries.Deadline, "wait", lambda _, pause_s: clock.sleep(pause_s) or True)
    monkeypatch.setattr(object_store, "client_of", lambda url, headers=(): client)
    monkeypatch.setattr(fetcher, "has_curl", lambda: False)
    fetching = Fetcher(
        ObjectStore(), lambda at: Range(at, "http://host/a.bin", at, 1, Version(7)), Pace(1, 1 << 20, 1), 1 << 20
    )
    fetching.announce(range(50))
    for at in range(50):
        with pytest.raises(LoaderError, match="dead"):
            fetching.take(at)
    assert 250 < clock.now - 1000 <= 300
    assert client.requests >= 2


@pytest.mark.parametrize("fault", [CUT, WHOLE, 429, 503])
def test_requests_with_temporarily_wrong_answers_are_retried(
    server: RangeServer, photos: ImageFolder, expected: list[Row], fault: int
) -> None:
    source = open_remote(server, photos)
    before = server.requests["all"]
    server.fault = lambda path, number: fault if number - before in (1, 2, 4) else USUAL
    with open_loader(source, workers_are="threads") as loader:
        assert serve(loader) == expected
    assert server.requests["all"] > before + 4


def test_a_server_without_ranges_is_refused(server: RangeServer, photos: ImageFolder) -> None:
    """The whole object is never mistaken for a range, not even for one that begins at 0."""
    source = open_remote(server, photos)
    server.fault = lambda path, number: WHOLE
    with pytest.raises(LoaderError, match="returns the whole object") as caught:
        source.read(0)
    assert "Range requests" in caught.value.fix
    assert caught.value.code == "E-READ"


def test_an_object_that_changes_during_an_epoch_is_refused(
    server: RangeServer, photos: ImageFolder, expected: list[Row]
) -> None:
    source = open_remote(server, photos, bytes_ahead=1)
    with open_loader(source, workers=0) as loader:
        assert serve(loader, 2) == expected[:12]
        server.etags["/1.bin"] = "another"
        with pytest.raises(LoaderError, match="replaced since it was indexed") as caught:
            serve(loader)
    assert caught.value.code == "E-CHANGED"
    assert "indexed again" in caught.value.fix
    assert source.refreshed() is not source


def test_without_etags_the_modification_time_is_compared(
    server: RangeServer, photos: ImageFolder, expected: list[Row]
) -> None:
    server.etags.update({f"/{part}.bin": "" for part in range(PARTS)})
    source = open_remote(server, photos)
    with open_loader(source, workers_are="threads") as loader:
        assert serve(loader) == expected
    assert source.refreshed() is source
    os.utime(server.root / "2.bin", (1e9, 1e9))
    with (
        pytest.raises(LoaderError, match="replaced since it was indexed"),
        open_loader(source, workers_are="threads") as loader,
    ):
        serve(loader)
    assert source.refreshed() is not source


def test_lasting_errors_are_reported_in_one_line_with_a_fix_for_urls(
    server: RangeServer, photos: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_remote(server, photos, retry_s=0.5)
    for status, code, words in (
        (404, "E-MISSING", "check the URL"),
        (403, "E-ACCESS", "credentials"),
        (401, "E-ACCESS", "credentials"),
        (500, "E-READ", "check the network"),
    ):
        server.fault = lambda path, number, status=status: status  # type: ignore[misc]
        before = source.store.retries
        with pytest.raises(LoaderError) as caught:
            source.read(3)
        assert (source.store.retries > before) is (code == "E-READ")
        assert (caught.value.code, caught.value.sample) == (code, 3)
        assert "\n" not in str(caught.value)
        assert words in caught.value.fix
        assert "folder" not in caught.value.fix
    monkeypatch.setattr(ObjectStore, "list", lambda self, url: {})
    with pytest.raises(LoaderError, match="check the pattern") as caught:
        url_patterns.expand_url(b"s3://bucket/train-*.tar")
    assert caught.value.code == "E-NODATA"


# ---- the fetcher ----


def test_forgotten_requests_are_not_started(server: RangeServer) -> None:
    """A thread that waits for a forgotten sample requests it again."""
    server.delay_s = 0.2
    version = ObjectStore().stat(f"{server.url}/0.bin").version
    fetching = Fetcher(
        ObjectStore(), lambda at: Range(at, f"{server.url}/0.bin", at, at + 4, version), Pace(1, 1 << 20, 1), 1 << 20
    )
    before = server.requests["all"]
    for at in range(21):
        fetching.announce([at])
    received: list[bytes] = []
    thread = threading.Thread(target=lambda: received.append(bytes(fetching.take(20))))
    thread.start()
    fetching.forget()
    thread.join()
    data = (server.root / "0.bin").read_bytes()
    assert received == [data[20 : 20 + 24]]
    assert server.requests["all"] - before <= 3
    assert fetching.has_room


def test_a_program_does_not_fetch_the_rest_when_it_ends(
    commands: Commands, server: RangeServer, tmp_path: Path
) -> None:
    server.delay_s = 0.1
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from penstock.loaders.data.remote.fetcher import Fetcher, Range\n"
        "from penstock.loaders.data.remote.object_store import ObjectStore\n"
        "store, url = ObjectStore(), sys.argv[1]\n"
        "version = store.stat(url).version\n"
        "from penstock.loaders.data.requests.pace import Pace\n"
        "fetcher = Fetcher(store, lambda at: Range(at, url, at, 10, version), Pace(2, 1 << 20, 2), 1 << 20)\n"
        "for at in range(100):\n"
        "    fetcher.announce([at])\n"
        "fetcher.take(0)\n"
    )
    code, command = commands.run(f"{server.url}/0.bin", script=program)
    assert (code, command.errors) == (0, "")
    assert 2 <= server.requests["all"] < 50
