"""Headers and passwords of HTTP: sent with every request, and never seen in texts, states and files."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from photo_folder import photo
from range_server import RangeServer, serve_ranges
from remote_photos import write_kinds

from penstock.bench.commands.data_options import DataOptions
from penstock.bench.record.settings import BenchSettings
from penstock.bench.report.text import repeat_command
from penstock.loaders import Column, LoaderError, create_loader, open_source, with_fields
from penstock.loaders.data.remote.access import Access, Headers
from penstock.loaders.data.requests import request_retries
from penstock.pipelines import ImagePipeline

SECRET = "s3cr3t-value"
COUNT = 6


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The headers of all requests."""
    found: list[dict[str, str]] = []
    plain = BaseHTTPRequestHandler.parse_request

    def parse(self: BaseHTTPRequestHandler) -> bool:
        is_right = plain(self)
        found.append({name.lower(): value for name, value in self.headers.items()} if is_right else {})
        return is_right

    monkeypatch.setattr(BaseHTTPRequestHandler, "parse_request", parse)
    return found


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    """A server of a tar, a table and images; indexes are saved below the temporary folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "root"
    write_kinds(root, COUNT)
    with serve_ranges(root) as server:
        yield server


def serve(source: Any, **options: Any) -> tuple[int, Any]:
    pipeline = ImagePipeline(size=(32, 32), crop="full", flip=0.0)
    settings: dict[str, Any] = {"batch_size": 2, "workers": 0, "bytes_ahead": 1 << 16}
    with create_loader(source, pipeline=pipeline, **settings, **options) as loader:
        return sum(len(batch[0]) for batch in loader), loader.state_dict()


def files_with(word: str, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]


@pytest.mark.parametrize("kind", ["a.tar", "a.csv", "list"])
def test_headers_are_sent_with_every_request_and_stored_nowhere(
    server: RangeServer, asked: list[dict[str, str]], tmp_path: Path, kind: str
) -> None:
    source = [(f"{server.url}/{n}.jpg", 0) for n in range(COUNT)] if kind == "list" else f"{server.url}/{kind}"
    headers = {"Authorization": f"Bearer {SECRET}", "X-Team": SECRET}
    count, state = serve(source, headers=headers, local_cache=tmp_path / "copy")
    assert count == COUNT
    assert {(each.get("authorization"), each.get("x-team")) for each in asked} == {(f"Bearer {SECRET}", SECRET)}
    assert SECRET not in repr(state)
    opened = open_source(source, headers=headers)
    assert opened.fingerprint == open_source(source).fingerprint
    assert SECRET not in repr(opened.__dict__)
    assert not files_with(SECRET, tmp_path)
    asked.clear()
    pickle.loads(pickle.dumps(opened)).read(0)
    assert {each.get("x-team") for each in asked} == {SECRET}


@pytest.mark.parametrize("is_separate", [False, True])
def test_headers_are_sent_for_tables_of_fields(
    server: RangeServer, asked: list[dict[str, str]], *, is_separate: bool
) -> None:
    table = f"{server.url}/a.csv"
    text = Column("path", table if is_separate else None)
    data = with_fields(table, text=text, headers={"X-Team": SECRET})
    assert data[1].fields["text"] == "1.jpg"
    assert {each.get("x-team") for each in asked} == {SECRET}


@pytest.mark.parametrize("kind", ["a.tar", "a.csv", "list"])
def test_a_password_in_a_url_is_sent_and_stored_nowhere(
    server: RangeServer, asked: list[dict[str, str]], tmp_path: Path, kind: str
) -> None:
    url = server.url.replace("://", f"://me%40here:{SECRET}@")
    source = [(f"{url}/{n}.jpg", 0) for n in range(COUNT)] if kind == "list" else f"{url}/{kind}"
    count, state = serve(source, local_cache=tmp_path / "copy")
    assert count == COUNT
    login = base64.b64encode(f"me@here:{SECRET}".encode()).decode()
    assert {each.get("authorization") for each in asked} == {f"Basic {login}"}
    assert SECRET not in repr(state)
    assert (
        open_source(source).fingerprint
        == open_source(
            [(f"{server.url}/{n}.jpg", 0) for n in range(COUNT)] if kind == "list" else f"{server.url}/{kind}"
        ).fingerprint
    )
    assert not files_with(SECRET, tmp_path)
    assert not files_with(login, tmp_path)


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_no_error_shows_headers_and_passwords(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(request_retries.Deadline, "allows_attempt", lambda *_: False)
    server.fault = lambda path, number: status
    for url in (f"{server.url}/a.tar", server.url.replace("://", f"://me:{SECRET}@") + "/a.tar"):
        with pytest.raises(LoaderError) as caught:
            open_source(url, headers={"X-Key": SECRET}, retry_s=0)
        assert SECRET not in str(caught.value)
        assert "bWU6" not in str(caught.value)  # me: in Base64


def test_headers_are_for_http_only(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(photo(0))
    with pytest.raises(ValueError, match="headers can only be used for data at URLs"):
        open_source([(tmp_path / "a.jpg", 0)], headers={"X-Key": SECRET})


@pytest.mark.parametrize(
    "given",
    ["X-Key: a", [("X-Key", SECRET)], {"X Key": SECRET}, {"X-Key": f"{SECRET}\n"}, {"X-Key": 5}, {"range": SECRET},
     {"If-Match": SECRET}, {"a": SECRET, "A": SECRET}, {"X-Key": f"ä{SECRET}"}],
)  # fmt: skip
def test_wrong_headers_are_refused_without_their_values(given: Any) -> None:
    with pytest.raises(ValueError, match="headers must") as caught:
        Access(headers=given)
    assert SECRET not in str(caught.value)


def test_headers_of_the_command_line_are_not_printed_or_recorded() -> None:
    values = dict.fromkeys((field for field in DataOptions.__dataclass_fields__), None)
    options = DataOptions.read({**values, "headers": [f"X-Key: {SECRET}", f"X-More:{SECRET}:1"]})
    assert Access.among(options).headers.pairs == (("X-Key", SECRET), ("X-More", f"{SECRET}:1"))
    settings = BenchSettings(data_options=options)
    texts = [repr(settings), json.dumps(asdict(settings)), json.dumps(asdict(settings.without_paths()))]
    texts.append(repeat_command(settings))
    assert not any(SECRET in text for text in texts)
    assert "--header 'X-Key: ***; X-More: ***'" in texts[-1]
    assert pickle.loads(pickle.dumps(options))["headers"] == options["headers"]
    assert Headers({"X-Key": "a"}) != Headers({"X-Key": "b"})
    with pytest.raises(ValueError, match="NAME:VALUE"):
        Headers.parse(["X-Key"])
