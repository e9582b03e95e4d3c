"""Settings of Azure and GCS that their own tools honour: connection strings and emulators."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote

import pytest
from range_server import RangeServer, serve_ranges

from penstock.loaders import LoaderError
from penstock.loaders.data.remote import clients
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.remote.store_profile import azure_settings

BODY = b"content of the object"
KEY = base64.b64encode(b"secret key").decode()
CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    """A server of one object, at the paths that Azure and GCS use."""
    for path in ("me/box/a b.bin", "box/a b.bin"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(BODY)
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    with serve_ranges(tmp_path) as server:
        yield server


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, dict[str, str]]]:
    """Method, target and headers of all requests."""
    found: list[tuple[str, str, dict[str, str]]] = []
    plain = BaseHTTPRequestHandler.parse_request

    def parse(self: BaseHTTPRequestHandler) -> bool:
        is_right = plain(self)
        found.append((self.command, self.path, {name.lower(): value for name, value in self.headers.items()}))
        return is_right

    monkeypatch.setattr(BaseHTTPRequestHandler, "parse_request", parse)
    return found


def read(url: str) -> bytes:
    store = ObjectStore()
    return bytes(store.read(url, 0, store.stat(url).size).data)


def sign(method: str, target: str, headers: dict[str, str]) -> str:
    """Return the value of Authorization that Azure's manual defines for a request without a body."""
    own = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers) if name.startswith("x-ms-"))
    lines = [method, "", "", "", "", "", headers.get("date", ""), "", "", "", "", headers.get("range", "")]
    text = "\n".join(lines) + "\n" + own + f"/me{target}"
    digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    return f"SharedKey me:{base64.b64encode(digest).decode()}"


def test_a_connection_string_with_a_key_signs_each_request(
    server: RangeServer, asked: list[tuple[str, str, dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONNECTION, f"AccountName=me;AccountKey={KEY};BlobEndpoint={server.url}/me;")
    assert read("az://box/a b.bin") == BODY
    assert {target for _, target, _ in asked} == {"/me/box/a%20b.bin"}
    assert all(headers["authorization"] == sign(method, target, headers) for method, target, headers in asked)


def test_a_connection_string_with_a_signature_sends_it(
    server: RangeServer, asked: list[tuple[str, str, dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONNECTION, f"BlobEndpoint={server.url}/me/;SharedAccessSignature=?sv=1&sig=a%2Bb%3D")
    assert read("az://box/a b.bin") == BODY
    assert {target for _, target, _ in asked} == {"/me/box/a%20b.bin?sv=1&sig=a%2Bb%3D"}


def test_connection_strings_are_read_as_azure_defines_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, options in (
        ("UseDevelopmentStorage=true", {"use_emulator": True}),
        ("AccountName=me;AccountKey=a==", {"account_name": "me", "account_key": "a=="}),
        ("accountname=me;EndpointSuffix=core.chinacloudapi.cn;DefaultEndpointsProtocol=https", {"account_name": "me"}),
    ):
        monkeypatch.setenv(CONNECTION, text)
        assert azure_settings().items() >= options.items()
    assert azure_settings()["endpoint"] == "https://me.blob.core.chinacloudapi.cn"
    monkeypatch.setenv(CONNECTION, "AccountKey=hidden==")
    with pytest.raises(LoaderError, match=r"E-ACCESS.*neither AccountName nor BlobEndpoint") as caught:
        clients.client_of("az://box/a")
    assert "hidden" not in str(caught.value)
    monkeypatch.delenv(CONNECTION)
    assert azure_settings() == {}


@pytest.mark.parametrize("form", ["{}", "{}/", "without http://"])
def test_an_emulator_of_gcs_is_read_without_keys(
    server: RangeServer, asked: list[tuple[str, str, dict[str, str]]], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    place = server.url.removeprefix("http://") if form == "without http://" else form.format(server.url)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", place)
    assert read("gs://box/a b.bin") == BODY
    assert {unquote(target) for _, target, _ in asked} == {"/box/a b.bin"}
    assert not any("authorization" in headers for _, _, headers in asked)
